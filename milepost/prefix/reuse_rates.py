"""How soon places come back, by kind: life tables, counted, with older events fading.

A place where a prompt ended, or where one left another, is *asked for* when a later prompt passes it and
goes on from it. The time until then is a *stay*, open until the place is asked for. Ages are cut into
spans that double: 0 to 8 seconds, to 16, to 32 and so on. For each kind of place and each span we count how
many stays reached the span (`at risk`) and how many ended in it, so

    hazard = (ended + WEIGHT * hazard of the wider kind) / (at risk + WEIGHT)

is the chance that a stay which reached a span ends there. A stay that is still open has been at risk in
each span that it reached and in no other: what was not observed does not count as a failure. Whether the
place is still cached makes no difference, so a small cache learns what a large one would.

From the hazards follows the *rate* of a kind at an age, in requests a second: the greatest that can be had by
keeping a place from then on and giving it up at the best moment,

    max over horizons h of  P(asked for within h) / E[seconds until it is asked for or h is over]

which is Gittins' index; hit density (LHD, Beckmann et al., NSDI 2018) is the same for the horizon at which
the cache itself gives up. A table of it is renewed as counts change.
"""

from __future__ import annotations

import math
from collections import deque

import numpy as np
import numpy.typing as npt

from milepost.prefix.stays import Stay

__all__ = ["ReturnRates"]

FIRST_SPAN = 8.0
"""Seconds of the first span; people and tools take longer, bursts don't."""

NUM_SPANS = 14
"""Up to 9 hours; the last one is open."""

WEIGHT = 16.0
"""Stays that a wider kind's hazard is worth: what it takes to talk a kind out of it."""

PRIOR = 0.05
"""Hazard of each span before anything is known: a power law, half of all come back in the end."""

MEMORY = 2048.0
"""Stays at risk of a kind after which its counts are halved."""

CAPACITY = 1 << 16
"""Most open stays that are followed through a span."""

_RENEWED_AFTER = 256  # events, between two tables


class ReturnRates:
    """Life tables of kinds of places.

    Args:
        wider: of each kind the wider one that it belongs to, which comes before it; -1 for none.
    """

    def __init__(self, wider: list[int]) -> None:
        self._paths = [_path(row, wider) for row in range(len(wider))]
        self._wider = wider
        self._at_risk = [[0.0] * NUM_SPANS for _ in wider]
        self._ended = [[0.0] * NUM_SPANS for _ in wider]
        self._waiting: list[deque[tuple[float, Stay]]] = [deque(maxlen=CAPACITY) for _ in range(NUM_SPANS)]
        self._events = 0
        self._renew()

    def begin(self, stay: Stay, now: float) -> None:
        """A stay opens: its `kind` is set, its `since` is now."""
        stay.since = now
        stay.is_open = True
        self._reach(stay, 0)

    def end(self, stay: Stay, now: float) -> None:
        """Its place was asked for."""
        if not stay.is_open:
            return
        stay.is_open = False
        span = _span(now - stay.since)
        for row in self._paths[stay.kind]:
            self._ended[row][span] += 1.0
        self._count()

    def pass_time(self, now: float) -> None:
        """Let open stays reach the spans that they have reached by `now`, seconds."""
        for span in range(1, NUM_SPANS):
            waiting, start = self._waiting[span], _start(span)
            while waiting and waiting[0][0] + start <= now:
                since, stay = waiting.popleft()
                if stay.is_open and stay.since == since:
                    self._reach(stay, span)

    def rate(self, kind: int, age: float) -> float:
        """Requests a second that keeping a place brings, at best, which has waited for `age` seconds."""
        rates = self._rates[kind]
        if age < FIRST_SPAN:
            share = age / FIRST_SPAN if age > 0.0 else 0.0
            return rates[0] + (rates[1] - rates[0]) * share
        mantissa, span = math.frexp(age / FIRST_SPAN)  # age = FIRST_SPAN * mantissa * 2 ** span
        if span >= NUM_SPANS - 1:
            return rates[-1] * _start(NUM_SPANS - 1) / max(age, _start(NUM_SPANS - 1))
        return rates[span] + (rates[span + 1] - rates[span]) * (2.0 * mantissa - 1.0)

    def hazards(self, kind: int) -> list[float]:
        """Chance of each span that a stay which reached it ends there."""
        return [float(hazard) for hazard in self._hazards()[kind]]

    def _reach(self, stay: Stay, span: int) -> None:
        for row in self._paths[stay.kind]:
            at_risk = self._at_risk[row]
            at_risk[span] += 1.0
            if at_risk[span] > MEMORY:
                at_risk[span] /= 2.0
                self._ended[row][span] /= 2.0
        if span + 1 < NUM_SPANS:
            self._waiting[span + 1].append((stay.since, stay))
        self._count()

    def _count(self) -> None:
        self._events += 1
        if self._events >= _RENEWED_AFTER:
            self._renew()

    def _hazards(self) -> npt.NDArray[np.float64]:
        at_risk, ended = np.array(self._at_risk), np.array(self._ended)
        hazards = np.empty_like(at_risk)
        for row, wider in enumerate(self._wider):
            prior = PRIOR if wider < 0 else hazards[wider]
            hazards[row] = (ended[row] + WEIGHT * prior) / (at_risk[row] + WEIGHT)
        # An end that was told of a stay whose beginning has faded must not make it more than certain.
        capped: npt.NDArray[np.float64] = np.minimum(hazards, 1.0)
        return capped

    def _renew(self) -> None:
        self._events = 0
        hazards = self._hazards()
        rates = np.zeros_like(hazards)
        for first in range(NUM_SPANS):
            alive = np.ones(len(hazards))
            asked, kept = np.zeros(len(hazards)), np.zeros(len(hazards))
            for span in range(first, NUM_SPANS):
                hazard = hazards[:, span]
                asked += alive * hazard
                kept += alive * (1.0 - hazard / 2.0) * _LENGTHS[span]
                alive *= 1.0 - hazard
                np.maximum(rates[:, first], asked / kept, out=rates[:, first])
        self._rates: list[list[float]] = rates.tolist()


def _path(row: int, wider: list[int]) -> list[int]:
    rows = []
    while row >= 0:
        rows.append(row)
        row = wider[row]
    return rows


def _start(span: int) -> float:
    return FIRST_SPAN * 2.0 ** (span - 1) if span else 0.0


def _span(age: float) -> int:
    if age < FIRST_SPAN:
        return 0
    return min(math.frexp(age / FIRST_SPAN)[1], NUM_SPANS - 1)


_LENGTHS = [_start(span + 1) - _start(span) for span in range(NUM_SPANS)]
