"""Which requests are alive, and where each one stands: it runs, waits for its turn, or follows another."""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable

from milepost.errors import InvariantError
from milepost.prefix.cache import Match
from milepost.scheduler.followers import Followers
from milepost.scheduler.sequence import Sequence
from milepost.scheduler.waiting import WaitingQueue

__all__ = ["Roster"]


class Roster:
    """Every request alive is in exactly one place.

    Attributes:
        alive: by request id.
        running: those that hold pages, in their order.
        waiting: those whose turn has not come.
        followers: those that wait for a snapshot of one that runs.
        loading: those that wait for a transfer, by its number.

    Args:
        match_unit: see `Followers`.
    """

    def __init__(self, match_unit: int) -> None:
        self.alive: dict[str, Sequence] = {}
        self.running: list[Sequence] = []
        self.waiting = WaitingQueue()
        self.followers = Followers(match_unit)
        self.loading: dict[int, list[Sequence]] = {}

    @property
    def in_prompt(self) -> list[Sequence]:
        """Those that run and still compute their prompt."""
        return [sequence for sequence in self.running if sequence.in_prompt]

    @property
    def num_idle(self) -> int:
        """Those that hold no pages: they wait for their turn, for another one or for a transfer."""
        return len(self.waiting) + len(self.followers) + sum(map(len, self.loading.values()))

    @property
    def has_suspect(self) -> bool:
        """Whether a suspect is first in line, of those that run or of those that wait for their turn."""
        if self.running and self.running[0].suspected_to:
            return True
        return self.suspect_waits

    @property
    def suspect_waits(self) -> bool:
        """Whether a suspect is the first of those that wait for their turn."""
        first = self.waiting.peek()
        return first is not None and first.suspected_to > 0

    def is_alive(self, sequence: Sequence) -> bool:
        """Whether `sequence` has not ended; another one may have its id by now."""
        return self.alive.get(sequence.request_id) is sequence

    def add(self, sequence: Sequence) -> None:
        """A new request waits for its turn."""
        self.alive[sequence.request_id] = sequence
        self.waiting.push(sequence)

    def admit(self, sequence: Sequence) -> None:
        """The first in the queue runs."""
        self.waiting.pop()
        insort(self.running, sequence, key=_order)

    def follow(self, sequence: Sequence, match: Match) -> bool:
        """The first in the queue follows one that runs, if that is better than `match`."""
        if not self.followers.follow(sequence, match, self.in_prompt):
            return False
        self.waiting.pop()
        return True

    def load(self, sequence: Sequence, transfer_id: int) -> None:
        """The first in the queue waits for a transfer."""
        self.waiting.pop()
        self.loading.setdefault(transfer_id, []).append(sequence)

    def loaded(self, transfer_ids: Iterable[int]) -> None:
        """Transfers have ended: those that waited for them are in the queue again."""
        for transfer_id in transfer_ids:
            self._wake(self.loading.pop(transfer_id, []))

    def passed(self, leader: Sequence) -> None:
        """One that runs has got on: those that followed it this far are in the queue again."""
        if self.followers:
            self._wake(self.followers.passed(leader))

    def preempt(self, sequence: Sequence) -> None:
        """One that runs waits for its turn again, in its old place."""
        self.running.remove(sequence)
        self.waiting.push(sequence)
        self._wake(self.followers.stopped(sequence))

    def suspect(self, sequence: Sequence, suspected_to: int) -> None:
        """One that runs has lost its pages with a failed step: it waits for its turn, before all others."""
        self.running.remove(sequence)
        sequence.suspect(max(sequence.suspected_to, suspected_to))
        self.waiting.push(sequence)
        self._wake(self.followers.stopped(sequence))

    def acquit(self, sequence: Sequence) -> None:
        """One that runs is a suspect no more, and has its old place again."""
        self.running.remove(sequence)
        sequence.suspect(0)
        insort(self.running, sequence, key=_order)

    def retire(self, sequence: Sequence) -> None:
        """A request ends, wherever it stands."""
        del self.alive[sequence.request_id]
        if sequence in self.followers:
            self.followers.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        elif sequence.pages is None:
            self.loading = {
                transfer_id: [one for one in waiting if one is not sequence]
                for transfer_id, waiting in self.loading.items()
            }
        else:
            self.running.remove(sequence)
            self._wake(self.followers.stopped(sequence))

    def check(self) -> None:
        """Raise `InvariantError` unless each request stands in one place and holds pages only if it runs."""
        if sorted(self.running, key=_order) != self.running:
            raise InvariantError("the running requests are out of order")
        if len(self.running) + self.num_idle != len(self.alive):
            raise InvariantError("a request alive stands nowhere or in two places")
        loading = {one.request_id for waiting in self.loading.values() for one in waiting}
        for sequence in self.alive.values():
            idle = sequence in self.waiting or sequence in self.followers or sequence.request_id in loading
            if idle != (sequence.pages is None):
                raise InvariantError(f"{sequence.request_id!r} waits with pages or runs without")
            if sequence.num_wanted < 1:
                raise InvariantError(f"{sequence.request_id!r} is alive and wants no token")

    def _wake(self, sequences: Iterable[Sequence]) -> None:
        for sequence in sequences:
            self.waiting.push(sequence)


def _order(sequence: Sequence) -> tuple[bool, int, int]:
    return sequence.order
