"""What was cached once: evicted snapshots and KV, remembered for a while to explain misses."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice
from typing import Self

from milepost.prefix.keys import Key
from milepost.prefix.nodes import Node

__all__ = ["Ghosts"]

_MOST = 1 << 16
_LEAST = 1 << 12
_PER_PAGE = 32  # a page of KV is some units: this is a few times what lies in all pages


class Ghosts:
    """What was evicted last: a bounded memory that only explanations read.

    It goes by full keys: a snapshot between two units is remembered with the unit before it.

    Args:
        match_unit: tokens between full keys.
        capacity: most snapshots, and most units of KV, that it remembers.
    """

    def __init__(self, match_unit: int, capacity: int = _MOST) -> None:
        self.match_unit = match_unit
        self._capacity = capacity
        # Where the deepest snapshot stood that is remembered with a unit; for KV where the unit ends.
        self._states: OrderedDict[Key, int] = OrderedDict()
        self._kv: OrderedDict[Key, int] = OrderedDict()

    @classmethod
    def of_pages(cls, match_unit: int, num_pages: int) -> Self:
        """As many as suit a cache of so many pages: a small one must not remember more than it holds.

        Args:
            match_unit: as of the class.
            num_pages: of the cache.
        """
        return cls(match_unit, min(_MOST, max(_LEAST, _PER_PAGE * num_pages)))

    def state_evicted(self, node: Node) -> None:
        """The snapshot at `node` is gone."""
        unit = node if self._is_unit(node) else node.parent
        if unit is not None and unit.parent is not None:  # the root's key is none
            self._remember(self._states, unit.key, max(node.position, self._states.get(unit.key, 0)))

    def kv_evicted(self, node: Node) -> None:
        """The KV of the unit that ends at `node` is gone; that of a tail is too little to remember."""
        if self._is_unit(node):
            self._remember(self._kv, node.key, node.position)

    def deepest_state(self, keys: Sequence[Key], above: int = 0) -> int:
        """Position of the deepest evicted snapshot on the path of these full keys; 0 for none `above`.

        Between units it is not known whether the path leads to just that snapshot: the tokens behind the
        unit may be others.
        """
        return self._deepest(self._states, keys, above)

    def deepest_kv(self, keys: Sequence[Key], above: int = 0) -> int:
        """Position up to which the KV of this path was cached once; 0 for none `above`."""
        return self._deepest(self._kv, keys, above)

    def clear(self) -> None:
        """Forget everything."""
        self._states.clear()
        self._kv.clear()

    def _is_unit(self, node: Node) -> bool:
        return node.position % self.match_unit == 0

    def _remember(self, memory: OrderedDict[Key, int], key: Key, position: int) -> None:
        memory[key] = position
        memory.move_to_end(key)
        if len(memory) > self._capacity:
            memory.popitem(last=False)

    def _deepest(self, memory: OrderedDict[Key, int], keys: Sequence[Key], above: int) -> int:
        # A snapshot in the unit in which `above` lies is remembered with the unit before.
        candidates = len(keys) - max(above // self.match_unit - 1, 0)
        key = next(filter(memory.__contains__, islice(reversed(keys), max(candidates, 0))), None)
        position = 0 if key is None else memory[key]
        return position if position > above else 0
