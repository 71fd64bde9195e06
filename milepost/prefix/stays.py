"""Places where prompts ended or parted, remembered whether they are cached or not, and who came by.

What a request tells about its place is known when it is looked up for the first time: whether its prompt goes
on from a place where an earlier one ended, how many turns long that has been going on, and how much is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from milepost.prefix.keys import Key

__all__ = ["NEW", "Places", "Stay", "Visit"]

_CAPACITY = 1 << 16


class Visit(NamedTuple):
    """What a request's first look-up tells about it.

    Attributes:
        turns: ends of earlier prompts that it goes on from, one after another.
        added: tokens behind the last of them.
    """

    turns: int
    added: int


NEW = Visit(0, 0)


class Stay:
    """The time that a place waits to be asked for; one object a place, which begins anew each time.

    Attributes:
        kind: a row of `milepost.prefix.reuse_rates.ReturnRates`.
        since: seconds, when it began.
        is_open: whether the place has not been asked for since.
        passes: how often the place was asked for.
        turns: of the prompt that ended here.
        position: tokens up to the place.
    """

    __slots__ = ("is_open", "kind", "passes", "position", "since", "turns")

    def __init__(self, kind: int, position: int, turns: int) -> None:
        self.kind = kind
        self.position = position
        self.turns = turns
        self.passes = 0
        self.since = 0.0
        self.is_open = False


class Places:
    """The last 65,536 places that were written or asked for, by the key of the whole unit at or before."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._stays: dict[Key, Stay] = {}

    def __len__(self) -> int:
        return len(self._stays)

    def deepest(self, keys: Sequence[Key]) -> Stay | None:
        """The deepest place on the path of these full keys."""
        if not self._stays:
            return None
        key = next(filter(self._stays.__contains__, reversed(keys)), None)
        if key is None:
            return None
        stay = self._stays[key] = self._stays.pop(key)  # the oldest are forgotten first
        return stay

    def get(self, key: Key) -> Stay | None:
        """The place of this unit."""
        return self._stays.get(key)

    def put(self, key: Key, stay: Stay) -> None:
        """Remember a place."""
        self._stays.pop(key, None)
        self._stays[key] = stay
        if len(self._stays) > self._capacity:
            del self._stays[next(iter(self._stays))]
