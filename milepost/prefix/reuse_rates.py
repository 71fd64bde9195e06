"""How often cached snapshots come back, by the reason they were left for: counted, with older events fading.

A snapshot lives in stretches: the first begins when it is written, another one each time that it is
consumed. A stretch either ends in a consumption or goes on until the snapshot is dropped, so

    chance = (consumed + WEIGHT * prior) / (begun + WEIGHT)

estimates how likely a stretch ends well, and never exceeds 1. First stretches are counted apart
from later ones, because a snapshot that was used once (a system prompt, say) is a different animal.
A stretch that is still open counts as one that failed; it does so for every reason alike.
"""

from __future__ import annotations

from milepost.prefix.plan import Reason

__all__ = ["ReuseRates"]

WEIGHT = 20.0
"""Begun stretches that the prior is worth: what it takes to talk a policy out of it."""

MEMORY = 1000.0
"""Events of the same kind after which an old one counts 1/e."""

FIRST_PRIORS = {
    Reason.TURN: 0.4,
    Reason.BRANCH: 0.5,  # two prompts have left each other here: likely a shared beginning
    Reason.PROMPT_TAIL: 0.2,
    Reason.LAST: 0.4,
    Reason.PERIOD: 0.2,
    Reason.BUDGET: 0.3,
    Reason.SPARE: 0.05,
    Reason.PREEMPTED: 0.9,  # its request waits in the queue
    Reason.JUNCTION: 0.9,  # and so does its follower
}
LATER_PRIOR = 0.6


class ReuseRates:
    """Counts of stretches and of those that ended in a consumption.

    Attributes:
        first: chance that a snapshot of a reason that was never consumed will be.
        later: chance that one that was consumed will be again.
    """

    __slots__ = ("_begun", "_consumed", "first", "later")

    def __init__(self) -> None:
        self.first: dict[Reason, float] = dict(FIRST_PRIORS)
        self.later: dict[Reason, float] = dict.fromkeys(Reason, LATER_PRIOR)
        self._begun: dict[tuple[Reason, bool], float] = {}
        self._consumed: dict[tuple[Reason, bool], float] = {}

    def written(self, reason: Reason) -> None:
        """A snapshot was left for `reason`: its first stretch begins."""
        self._begin(reason, later=False)

    def consumed(self, reason: Reason, hits: int) -> None:
        """A snapshot of `reason`, consumed `hits` times before, was consumed: its next stretch begins."""
        kind = (reason, hits > 0)
        # Never more than what began, should a caller tell of a snapshot whose writing it did not tell.
        self._consumed[kind] = min(self._consumed.get(kind, 0.0) + 1.0, self._begun.get(kind, 0.0))
        self._update(kind)
        self._begin(reason, later=True)

    def _begin(self, reason: Reason, *, later: bool) -> None:
        kind = (reason, later)
        fade = 1.0 - 1.0 / MEMORY
        self._begun[kind] = self._begun.get(kind, 0.0) * fade + 1.0
        self._consumed[kind] = self._consumed.get(kind, 0.0) * fade
        self._update(kind)

    def _update(self, kind: tuple[Reason, bool]) -> None:
        reason, later = kind
        prior = LATER_PRIOR if later else FIRST_PRIORS[reason]
        chance = (self._consumed.get(kind, 0.0) + WEIGHT * prior) / (self._begun.get(kind, 0.0) + WEIGHT)
        (self.later if later else self.first)[reason] = chance
