"""Who asks: a tenant, by its API key; without keys everyone is one tenant."""

from __future__ import annotations

import msgspec
from starlette.requests import Request as HttpRequest

__all__ = ["ANONYMOUS", "Tenant", "tenant_of"]


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One of those who share a server.

    Attributes:
        name: as logs and metrics show it.
    """

    name: str


ANONYMOUS = Tenant(name="anonymous")


def tenant_of(http: HttpRequest) -> Tenant:
    """Whose request this is."""
    tenant = http.scope.get("state", {}).get("tenant", ANONYMOUS)
    assert isinstance(tenant, Tenant)
    return tenant
