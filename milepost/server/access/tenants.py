"""Who asks: a tenant, by its API key; without keys everyone is one tenant."""

from __future__ import annotations

import hashlib

import msgspec
from starlette.requests import HTTPConnection

from milepost.errors import RequestError
from milepost.types import Request

__all__ = ["ANONYMOUS", "Tenant", "TenantLimits", "arrival_of", "tenant_of"]

_SALT_BYTES = 32  # of what the engine sees; twice as many hexadecimal digits


class TenantLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one tenant may ask for; None is no limit of its own beside the server's.

    Attributes:
        max_requests: replies under way at once; a request for several counts as many.
        max_waiting: of those, replies that wait for their turn.
        requests_per_minute: replies begun, over time; a whole minute's may come at once.
        tokens_per_minute: tokens of prompts and replies, over time; a whole minute's may come at once.
        max_tokens: tokens of one reply.
        min_priority: the lowest number that a request's ``priority`` may be: lower runs earlier.
    """

    max_requests: int | None = None
    max_waiting: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    max_tokens: int | None = None
    min_priority: int | None = None


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One of those who share a server.

    Attributes:
        name: as logs and metrics show it.
        salt: the key of what separates its cached prefixes from others'; None where there is one tenant.
        limits: what it may ask for.
        operator: whether it may also see and do what concerns all tenants.
    """

    name: str
    salt: bytes | None = None
    limits: TenantLimits = TenantLimits()
    operator: bool = False

    def engine_salt(self, cache_salt: str) -> str:
        """The salt of a request as the engine sees it.

        A keyed hash (BLAKE2b, RFC 7693) of what the client chose: whatever two tenants send, their salts
        differ, and so do all keys of their prefixes.
        """
        if self.salt is None:
            return cache_salt
        digest = hashlib.blake2b(
            # Half of a surrogate pair can come in through JSON's escapes.
            cache_salt.encode("utf-8", "surrogatepass"),
            key=self.salt,
            digest_size=_SALT_BYTES,
            person=b"milepost tenant",
        )
        return digest.hexdigest()

    def bound(self, request: Request) -> Request:
        """The request as this tenant may make it: salted, and within its limits.

        Raises:
            RequestError: it asks for more tokens than the tenant may have.
        """
        limits, sampling, priority = self.limits, request.sampling, request.priority
        if limits.max_tokens is not None:
            if sampling.max_tokens is None:
                sampling = msgspec.structs.replace(sampling, max_tokens=limits.max_tokens)
            elif sampling.max_tokens > limits.max_tokens:
                raise RequestError(
                    f"max_tokens must be at most {limits.max_tokens} with this API key. "
                    f"Given: {sampling.max_tokens}.",
                    param="max_tokens",
                )
        if limits.min_priority is not None:
            priority = max(priority, limits.min_priority)
        return msgspec.structs.replace(
            request,
            sampling=sampling,
            priority=priority,
            cache_salt=self.engine_salt(request.cache_salt),
        )


ANONYMOUS = Tenant(name="anonymous", operator=True)


def tenant_of(http: HTTPConnection) -> Tenant:
    """Whose request this is."""
    tenant = http.scope.get("state", {}).get("tenant", ANONYMOUS)
    assert isinstance(tenant, Tenant)
    return tenant


def arrival_of(http: HTTPConnection) -> float | None:
    """When its head had come, on the clock of `time.monotonic`; None when nobody noted it."""
    arrival = http.scope.get("state", {}).get("arrival")
    assert arrival is None or isinstance(arrival, float)
    return arrival
