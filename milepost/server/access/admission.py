"""How much each tenant has under way and has used lately, and whether more may come in."""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from milepost.errors import RequestError
from milepost.server.access.refusals import too_many
from milepost.server.access.tenants import Tenant
from milepost.server.protocol.error_codes import ErrorCode
from milepost.types import Request

__all__ = ["Admission", "Bucket", "Pace"]

_RECENT_ENDS = 32
_RECENT_SECONDS = 60.0
_GUESSED_SECONDS = 5.0  # between two ends, while none has been seen lately


class Bucket:
    """A rate limit that lets a whole minute's come at once (token bucket).

    What is taken may be more than what is there: the debt is paid off before anyone may take again. So
    nothing is too large to ever pass, and what was not known before, a reply's length, counts in full.

    Args:
        per_minute: what comes back in a minute, and the most that is there.
        now: in seconds.
    """

    def __init__(self, per_minute: int, now: float) -> None:
        self.per_minute = per_minute
        self._level = float(per_minute)
        self._at = now

    def wait(self, now: float) -> float:
        """Seconds until something may be taken; 0 when it may be now."""
        self._refill(now)
        return max(0.0, (1.0 - self._level) * 60.0 / self.per_minute)

    def take(self, amount: int, now: float) -> None:
        """Take `amount`, whether or not it is there."""
        self._refill(now)
        self._level -= amount

    def _refill(self, now: float) -> None:
        self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / 60.0)
        self._at = now


class Pace:
    """How often requests have ended lately: what a ``Retry-After`` is estimated from."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=_RECENT_ENDS)

    def ended(self, now: float) -> None:
        """A request ended."""
        self._ends.append(now)

    def seconds_for(self, count: int, now: float) -> float:
        """An estimate of how long it takes until `count` more have ended."""
        while self._ends and now - self._ends[0] > _RECENT_SECONDS:
            self._ends.popleft()
        if not self._ends:
            return count * _GUESSED_SECONDS
        return count * (now - self._ends[0]) / len(self._ends)


@dataclass
class _Account:
    """What one tenant has under way and has used."""

    open: int = 0
    waiting: int = 0
    pace: Pace = field(default_factory=Pace)
    requests: Bucket | None = None
    tokens: Bucket | None = None


class Admission:
    """Lets requests in within the limits of their tenant and of the server. For one event loop.

    Args:
        max_waiting: replies that may wait for their turn, of all tenants together.
        queue_length: how many wait now, as the engine sees it.
        clock: seconds.
    """

    def __init__(
        self,
        max_waiting: int,
        queue_length: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_waiting = max_waiting
        self._queue_length = queue_length
        self._clock = clock
        self._accounts: defaultdict[str, _Account] = defaultdict(_Account)
        self._pace = Pace()

    def check(self, tenant: Tenant, count: int) -> None:
        """Refuse `count` replies that may not come in now; nothing is counted yet.

        Raises:
            HttpError: 429, with an estimate of when it may.
            RequestError: more replies at once than the tenant may ever have.
        """
        account, limits = self._account_as_limited(tenant), tenant.limits
        now = self._clock()
        if limits.max_requests is not None:
            if count > limits.max_requests:
                raise RequestError(
                    f"One request may ask for at most {limits.max_requests} replies with this API key, its "
                    f"prompts times n. Given: {count}."
                )
            excess = account.open + count - limits.max_requests
            if excess > 0:
                raise too_many(
                    f"This API key may have {limits.max_requests} replies under way at once.",
                    ErrorCode.RATE_LIMIT_EXCEEDED,
                    account.pace.seconds_for(excess, now),
                )
        self._check_rates(account, now)
        self._check_queue(account, tenant, now)

    def begin(self, tenant: Tenant, requests: Sequence[Request]) -> None:
        """`check` let them in; each is to be told of by `begun` at most once and by `ended` once."""
        account, now = self._account_as_limited(tenant), self._clock()
        account.open += len(requests)
        account.waiting += len(requests)
        if account.requests is not None:
            account.requests.take(len(requests), now)
        if account.tokens is not None:
            account.tokens.take(sum(len(request.prompt_token_ids) for request in requests), now)

    def begun(self, tenant: Tenant) -> None:
        """The first of a reply's tokens has come, or its end."""
        self._account(tenant).waiting -= 1

    def drawn(self, tenant: Tenant, count: int) -> None:
        """A reply grew by so many tokens."""
        account = self._account(tenant)
        if account.tokens is not None:
            account.tokens.take(count, self._clock())

    def ended(self, tenant: Tenant) -> None:
        """A request ended, however it did."""
        account, now = self._account(tenant), self._clock()
        account.open -= 1
        account.pace.ended(now)
        self._pace.ended(now)

    def _check_rates(self, account: _Account, now: float) -> None:
        for bucket, what in ((account.requests, "replies"), (account.tokens, "tokens")):
            if bucket is not None and (seconds := bucket.wait(now)) > 0:
                raise too_many(
                    f"This API key may have {bucket.per_minute} {what} a minute.",
                    ErrorCode.RATE_LIMIT_EXCEEDED,
                    seconds,
                )

    def _check_queue(self, account: _Account, tenant: Tenant, now: float) -> None:
        waiting = self._queue_length()
        if waiting >= self._max_waiting:
            raise too_many(
                f"{waiting} replies wait for their turn; the limit is {self._max_waiting}.",
                ErrorCode.QUEUE_FULL,
                self._pace.seconds_for(waiting - self._max_waiting + 1, now),
            )
        limit = tenant.limits.max_waiting
        # What the engine has begun to read but not to answer waits for nothing any more.
        waiting = min(waiting, account.waiting)
        if limit is not None and waiting >= limit:
            raise too_many(
                f"{waiting} replies of this API key wait for their turn; its limit is {limit}.",
                ErrorCode.QUEUE_FULL,
                account.pace.seconds_for(waiting - limit + 1, now),
            )

    def _account(self, tenant: Tenant) -> _Account:
        return self._accounts[tenant.name]

    def _account_as_limited(self, tenant: Tenant) -> _Account:
        """The account, with the tenant's limits of now.

        Only for who comes in: what was let in before the file of keys was read again runs on with the
        tenant as it was, and must not bring its limits back.
        """
        account, limits, now = self._account(tenant), tenant.limits, self._clock()
        account.requests = _bucket(account.requests, limits.requests_per_minute, now)
        account.tokens = _bucket(account.tokens, limits.tokens_per_minute, now)
        return account


def _bucket(bucket: Bucket | None, per_minute: int | None, now: float) -> Bucket | None:
    """The bucket of a limit, which may have changed with the file of keys."""
    if per_minute is None:
        return None
    return bucket if bucket is not None and bucket.per_minute == per_minute else Bucket(per_minute, now)
