"""Requests that wait for another one's snapshot instead of computing the same tokens beside it.

A burst of prompts with a common beginning is computed once: the first to run leads, the others follow
if it is about to leave a snapshot that is deeper than what they would hit now. Where none is planned,
a follower asks for one at the junction, the last token that both share. A follower holds no pages and
its place in the queue; it wakes when the leader has passed the snapshot, or runs no more.
"""

from __future__ import annotations

from collections.abc import Iterable

from milepost.prefix.cache import Match
from milepost.prefix.plan import Reason
from milepost.scheduler.sequence import Sequence

__all__ = ["Followers", "shared_tokens"]

_MAX_JUNCTIONS = 16  # snapshots that one leader leaves on request


class Followers:
    """Who waits for whom.

    Args:
        match_unit: least number of tokens worth waiting for.
    """

    def __init__(self, match_unit: int) -> None:
        self._match_unit = match_unit
        # Leader's id -> the position and the sequence of each of its followers.
        self._waiting: dict[str, list[tuple[int, Sequence]]] = {}
        self._leader_of: dict[str, str] = {}
        self._num_junctions: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._leader_of)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.request_id in self._leader_of

    def follow(self, sequence: Sequence, match: Match, running: Iterable[Sequence]) -> bool:
        """Let `sequence` wait for one of `running` that is about to leave a better snapshot than `match`."""
        best: tuple[int, bool, Sequence] | None = None
        for leader in running:
            offer = self._offer(sequence, match, leader)
            if offer is not None and (best is None or offer[0] > best[0]):
                best = *offer, leader
        if best is None:
            return False
        position, is_planned, leader = best
        if not is_planned:
            self._ask_for(leader, position)
        self._waiting.setdefault(leader.request_id, []).append((position, sequence))
        self._leader_of[sequence.request_id] = leader.request_id
        return True

    def passed(self, leader: Sequence) -> list[Sequence]:
        """The followers that `leader` need not keep waiting: it has computed what they waited for."""
        followers = self._waiting.get(leader.request_id)
        if not followers:
            return []
        awake = [sequence for position, sequence in followers if position <= leader.num_computed]
        self._waiting[leader.request_id] = [entry for entry in followers if entry[0] > leader.num_computed]
        for sequence in awake:
            del self._leader_of[sequence.request_id]
        return awake

    def stopped(self, leader: Sequence) -> list[Sequence]:
        """The followers of a leader that runs no more."""
        self._num_junctions.pop(leader.request_id, None)
        awake = [sequence for _, sequence in self._waiting.pop(leader.request_id, [])]
        for sequence in awake:
            del self._leader_of[sequence.request_id]
        return awake

    def remove(self, sequence: Sequence) -> None:
        """A follower ends while it waits; KeyError when it does not wait here."""
        leader_id = self._leader_of.pop(sequence.request_id)
        self._waiting[leader_id] = [entry for entry in self._waiting[leader_id] if entry[1] is not sequence]

    def _offer(self, sequence: Sequence, match: Match, leader: Sequence) -> tuple[int, bool] | None:
        """Where `leader` can leave a snapshot worth waiting for, and whether it will without being asked."""
        if leader.trail is None or leader.trail.private:
            return None
        if leader.request.priority > sequence.request.priority:
            return None  # those in between would take the leader's turns, and so the follower's
        shared = min(shared_tokens(sequence, leader), len(sequence.tokens) - 1)
        low = max(match.hit + self._match_unit - 1, leader.num_computed)
        if shared <= low:
            return None
        planned = leader.trail.points_between(low, shared)
        if planned and shared - planned[-1] < self._match_unit:
            return planned[-1], True
        asked = self._num_junctions.get(leader.request_id, 0)
        if asked < _MAX_JUNCTIONS and shared <= leader.trail.planned_to:
            return shared, False
        return (planned[-1], True) if planned else None

    def _ask_for(self, leader: Sequence, position: int) -> None:
        assert leader.trail is not None  # it made an offer
        self._num_junctions[leader.request_id] = self._num_junctions.get(leader.request_id, 0) + 1
        leader.trail.add_point(position, Reason.JUNCTION, leader.num_computed)


def shared_tokens(one: Sequence, other: Sequence) -> int:
    """How many tokens two sequences have in common from their beginning, by their keys, then token by token.

    Costs logarithmic time in their length, and one unit's tokens.
    """
    if one.trail is None or other.trail is None:
        return 0
    first, second = one.trail.chain, other.trail.chain
    if first.root != second.root:
        return 0  # different salts
    low, high = 0, min(len(first.full), len(second.full))
    while low < high:
        middle = (low + high + 1) // 2
        if first.full[middle - 1] == second.full[middle - 1]:
            low = middle
        else:
            high = middle - 1
    position = low * one.trail.match_unit
    end = min(len(one.tokens), len(other.tokens), position + one.trail.match_unit)
    while position < end and one.tokens[position] == other.tokens[position]:
        position += 1
    return position
