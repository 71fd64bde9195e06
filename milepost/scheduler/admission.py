"""Who may begin: requests that wait for their turn, taken in order while what they need fits."""

from __future__ import annotations

from milepost.errors import InvariantError
from milepost.prefix.cache import Match, PrefixCache
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.followers import shared_tokens
from milepost.scheduler.lives import Lives, pages_of
from milepost.scheduler.roster import Roster
from milepost.scheduler.sequence import Sequence
from milepost.scheduler.step import Step
from milepost.scheduler.transfers import Transfers

__all__ = ["Admission"]


class Admission:
    """Begins the lives of waiting requests, or lets them wait for what saves them work.

    Args:
        config: the limits.
        lives: begins them.
        roster: where requests stand.
        transfers: load what another tier has.
        cache: what they may resume from.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        lives: Lives,
        roster: Roster,
        transfers: Transfers,
        cache: PrefixCache | None,
    ) -> None:
        self._config = config
        self._lives = lives
        self._roster = roster
        self._transfers = transfers
        self._cache = cache
        # Who was weighed last and found too big: its id, its need and the pages that were available.
        self._refused: tuple[str, int, int] = ("", 0, 0)

    def plan(self, step: Step, most_rows: int) -> None:
        """Admit waiting requests in order while everything that is known to be needed still fits.

        Counted are all known tokens and the headroom to grow by, not only the first chunk, of the
        newcomer and of those that run already: otherwise what can't all be held would be started
        only to be preempted. When nobody runs the first is admitted in any case: its known tokens
        fit, and its growth ends at the pool's limit.

        Who follows a running request does so even when there is no room for newcomers: the longer a
        prompt, the fewer steps leave any, and its leader must hear in time where the two part.

        Args:
            step: what they get their first chunks in.
            most_rows: rows that the step may have.
        """
        promised: int | None = None
        while (sequence := self._roster.waiting.peek()) is not None:
            has_turn = step.budget > 0 and len(self._roster.running) < self._config.max_num_seqs
            has_turn = has_turn and len(step.chunks) < most_rows
            match = self._lives.look_up(sequence) if has_turn or self._roster.in_prompt else None
            if has_turn and match is not None and self._fetches(sequence, match):
                continue
            if match is not None and self._follows(sequence, match):
                continue
            if not has_turn:
                return
            need = self._lives.need(match, self._foreseen(sequence))
            if self._roster.running and need > self._lives.num_available:
                return
            if promised is None:
                # Summed only when it decides: it is the one cost that grows with those that run.
                promised = sum(pages_of(one).lacking(self._foreseen(one)) for one in self._roster.running)
            available = self._lives.num_available
            # A guard costs time for a long path, and only makes fewer pages available.
            if self._roster.running and (promised + need > available or self._is_refused(sequence, need)):
                return
            self._lives.guard(match)
            if promised + need > self._lives.num_available:
                if self._roster.running or self._transfers.loading:
                    self._lives.unguard(match)
                    self._refused = (sequence.request_id, need, available)
                    return
                match = self._lives.fitting(match, len(sequence.tokens))
                need = self._lives.need(match, self._foreseen(sequence))
            self._admit(sequence, match, step)
            promised += need - pages_of(sequence).num_pages

    def _is_refused(self, sequence: Sequence, need: int) -> bool:
        """Whether it was weighed with the same need when no fewer pages were available."""
        request_id, last_need, last_available = self._refused
        same = request_id == sequence.request_id and need == last_need
        return same and self._lives.num_available <= last_available

    def _fetches(self, sequence: Sequence, match: Match) -> bool:
        """Whether the first in the queue waits from now on for what another tier has of its prefix."""
        if (
            self._roster.running
            and self._lives.need(match, self._foreseen(sequence)) > self._lives.num_available
        ):
            return False  # there is no room for it anyway
        transfer_id = self._transfers.fetch(sequence, match)
        if transfer_id is None:
            return False
        self._roster.load(sequence, transfer_id)
        return True

    def _follows(self, sequence: Sequence, match: Match) -> bool:
        """Whether the first in the queue waits for a running request's snapshot from now on."""
        if self._cache is None or not self._cache.config.wait_for_leaders:
            return False
        if not self._roster.follow(sequence, match):
            return False
        self._cache.waited()
        return True

    def _admit(self, sequence: Sequence, match: Match | None, step: Step) -> None:
        """Begin the life of the first in the queue with its first chunk."""
        in_flight = 0
        if sequence.trail is not None and sequence.trail.first_look:
            leaders = self._roster.in_prompt
            in_flight = max((shared_tokens(sequence, leader) for leader in leaders), default=0)
        self._lives.begin(sequence, match, in_flight=in_flight)
        count = self._lives.reserve_chunk(sequence, step.budget)
        if not count:
            raise InvariantError(f"{sequence.request_id!r} was admitted and lacks pages")
        self._roster.admit(sequence)
        step.take(sequence, count)

    def _foreseen(self, sequence: Sequence) -> int:
        """Tokens that admission makes room for: the known ones, and headroom as far as it can be used."""
        return min(len(sequence.tokens) + self._config.headroom, sequence.last_computed)
