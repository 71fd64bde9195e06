"""Tiers behind the tag executor's arena, whose transfers take as long as a test says, and may fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from milepost.errors import InvariantError
from milepost.testing.tag_memory import Page, TagMemory, Unreadable, copy_of
from milepost.types import Tier, Transfer, TransferResult

__all__ = ["TagTiers"]


class _Flight(NamedTuple):
    """A transfer on its way: what it read when it began, and the step with whose result it ends."""

    transfer: Transfer
    content: list[Page]
    due: int


class TagTiers:
    """Host and disk pages, and the transfers that are on their way; for one `TagExecutor`.

    While a transfer is on its way its target pages are unreadable, and when it ends its source pages
    must hold what they held when it began. A failed one leaves NaN in the arena, torn pages elsewhere.

    Args:
        host_pages: pages of the host tier.
        disk_pages: pages of the disk tier.
        free_host_pages: tells which host pages nobody owns; they are poisoned before each step.
        steps_of: how many more steps a transfer in the background takes; 0 ends it with its own.
        error_of: why a transfer fails, or None when it doesn't; asked when it ends.
    """

    def __init__(
        self,
        *,
        host_pages: int = 0,
        disk_pages: int = 0,
        free_host_pages: Callable[[], Iterable[int]] | None = None,
        steps_of: Callable[[Transfer], int] | None = None,
        error_of: Callable[[Transfer], str | None] | None = None,
    ) -> None:
        self._memories: dict[Tier, list[Page]] = {
            Tier.HOST: [Unreadable.POISON] * host_pages,
            Tier.DISK: [Unreadable.POISON] * disk_pages,
        }
        self._free_host_pages = free_host_pages
        self._free_host: frozenset[int] = frozenset()
        self._arena: TagMemory | None = None
        self._steps_of = steps_of
        self._error_of = error_of
        self._flights: list[_Flight] = []
        self._ended: list[TransferResult] = []
        self._seen: set[int] = set()
        self._step = 0

    @property
    def num_in_flight(self) -> int:
        """Transfers that have begun and not ended."""
        return len(self._flights)

    def pages(self, tier: Tier) -> list[Page]:
        """What the pages of host or disk hold, for tests that look into them."""
        return self._memories[tier]

    def attach(self, arena: TagMemory) -> None:
        """The arena that these tiers stand behind; called once, by the executor."""
        self._arena = arena
        self._memories[Tier.ARENA] = arena.pages

    def demote(self, transfers: Sequence[Transfer]) -> None:
        """A step begins: carry out what goes from the arena to the host, before the arena changes."""
        self._poison_host()
        down = [transfer for transfer in transfers if transfer.is_immediate]
        written = [page for transfer in down for _, page in transfer.pages]
        if len(set(written)) != len(written):
            raise InvariantError(f"a host page is written twice in one step: {sorted(written)}")
        for transfer in down:
            self._end(self._begin(transfer))

    def start(self, transfers: Sequence[Transfer]) -> None:
        """Begin every other transfer."""
        self._flights += [self._begin(transfer) for transfer in transfers if not transfer.is_immediate]

    def finish_step(self, *, waits: bool) -> tuple[TransferResult, ...]:
        """End what is due, and if nothing has ended but the step waits, what is due next.

        Returns:
            the transfers that have ended since the result before.
        """
        if waits and not self._ended:
            if not self._flights:
                raise InvariantError("a step waits for a transfer and none is on its way")
            self._step = max(self._step, min(flight.due for flight in self._flights))
        due = [flight for flight in self._flights if flight.due <= self._step]
        self._flights = [flight for flight in self._flights if flight.due > self._step]
        for flight in due:
            self._end(flight)
        self._step += 1
        ended = tuple(self._ended)
        self._ended.clear()
        return ended

    def _poison_host(self) -> None:
        if self._free_host_pages is None:
            return
        host = self._memories[Tier.HOST]
        self._free_host = frozenset(self._free_host_pages())
        for page in self._free_host:
            if host[page] is Unreadable.LOADING:
                raise InvariantError(f"host page {page} is free while a transfer writes it")
            host[page] = Unreadable.POISON

    def _begin(self, transfer: Transfer) -> _Flight:
        if transfer.transfer_id in self._seen:
            raise InvariantError(f"transfer {transfer.transfer_id} comes twice")
        self._seen.add(transfer.transfer_id)
        source, target = self._memories[transfer.source], self._memories[transfer.target]
        content = []
        for read, written in transfer.pages:
            self._require_owned(transfer, transfer.source, read)
            self._require_owned(transfer, transfer.target, written)
            held = source[read]
            if isinstance(held, Unreadable):
                raise InvariantError(f"{_name(transfer)} reads page {read}, which {held.value}")
            self._require_changeable(transfer, written)
            content.append(copy_of(held))
            target[written] = Unreadable.LOADING
        steps = self._steps_of(transfer) if self._steps_of is not None else 0
        return _Flight(transfer, content, self._step + steps)

    def _end(self, flight: _Flight) -> None:
        transfer = flight.transfer
        source, target = self._memories[transfer.source], self._memories[transfer.target]
        error = self._error_of(transfer) if self._error_of is not None else None
        for (read, written), content in zip(transfer.pages, flight.content, strict=True):
            if source[read] != content:
                raise InvariantError(f"{_name(transfer)}: page {read} changed while it was read")
            if target[written] is not Unreadable.LOADING:
                raise InvariantError(f"{_name(transfer)}: page {written} changed while it was written")
            if error is None:
                target[written] = content
            else:
                torn = Unreadable.NAN if transfer.target is Tier.ARENA else Unreadable.POISON
                target[written] = torn
        self._ended.append(TransferResult(transfer_id=transfer.transfer_id, error=error))

    def _require_owned(self, transfer: Transfer, tier: Tier, page: int) -> None:
        """The page exists and has an owner, unless what comes down was forgotten since it was planned."""
        # The arena's page 0 is the dummy page; the other tiers have none.
        if not (tier is Tier.ARENA) <= page < len(self._memories[tier]):
            raise InvariantError(f"{_name(transfer)} names page {page} of the {tier.value}")
        if tier is Tier.HOST and page in self._free_host and not transfer.is_immediate:
            raise InvariantError(f"{_name(transfer)} names host page {page}, which is free")

    def _require_changeable(self, transfer: Transfer, page: int) -> None:
        if transfer.target is Tier.ARENA:
            assert self._arena is not None
            self._arena.require_changeable(page, _name(transfer))
        elif self._memories[transfer.target][page] is Unreadable.LOADING:
            raise InvariantError(f"{_name(transfer)} writes page {page}, as another one does")


def _name(transfer: Transfer) -> str:
    return f"transfer {transfer.transfer_id} from {transfer.source.value} to {transfer.target.value}"
