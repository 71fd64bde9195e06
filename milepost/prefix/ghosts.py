"""What was cached once: evicted snapshots and KV, remembered for a while to explain misses."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.prefix.keys import Key
from milepost.prefix.nodes import Node

__all__ = ["Ghosts"]

_CAPACITY = 1 << 16


class Ghosts:
    """What was evicted last: a bounded memory that only explanations read.

    It goes by full keys: a snapshot between two units is remembered with the unit before it.

    Args:
        match_unit: tokens between full keys.
        capacity: most snapshots, and most units of KV, that it remembers.
    """

    def __init__(self, match_unit: int, capacity: int = _CAPACITY) -> None:
        self.match_unit = match_unit
        self._capacity = capacity
        # Where the deepest snapshot stood that is remembered with a unit; for KV where the unit ends.
        self._states: dict[Key, int] = {}
        self._kv: dict[Key, int] = {}

    def state_evicted(self, node: Node) -> None:
        """The snapshot at `node` is gone."""
        unit = node if self._is_unit(node) else node.parent
        if unit is not None and unit.parent is not None:  # the root's key is none
            self._remember(self._states, unit.key, max(node.position, self._states.get(unit.key, 0)))

    def kv_evicted(self, node: Node) -> None:
        """The KV of the unit that ends at `node` is gone; that of a tail is too little to remember."""
        if self._is_unit(node):
            self._remember(self._kv, node.key, node.position)

    def deepest_state(self, keys: Sequence[Key]) -> int:
        """Position of the deepest evicted snapshot on the path of these full keys; 0 for none.

        Between units it is not known whether the path leads to just that snapshot: the tokens behind the
        unit may be others.
        """
        return _deepest(self._states, keys)

    def deepest_kv(self, keys: Sequence[Key]) -> int:
        """Position up to which the KV of this path was cached once; 0 for none."""
        return _deepest(self._kv, keys)

    def clear(self) -> None:
        """Forget everything."""
        self._states.clear()
        self._kv.clear()

    def _is_unit(self, node: Node) -> bool:
        return node.position % self.match_unit == 0

    def _remember(self, memory: dict[Key, int], key: Key, position: int) -> None:
        memory.pop(key, None)
        memory[key] = position
        if len(memory) > self._capacity:
            del memory[next(iter(memory))]


def _deepest(memory: dict[Key, int], keys: Sequence[Key]) -> int:
    if not memory:
        return 0
    key = next(filter(memory.__contains__, reversed(keys)), None)
    return 0 if key is None else memory[key]
