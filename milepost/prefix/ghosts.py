"""What was cached once: keys of evicted snapshots and KV, remembered for a while to explain misses."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Ghosts"]

_CAPACITY = 1 << 16


class Ghosts:
    """The keys of what was evicted last: a bounded memory that only explanations read."""

    def __init__(self, capacity: int = _CAPACITY) -> None:
        self._capacity = capacity
        self._states: dict[bytes, None] = {}
        self._kv: dict[bytes, None] = {}

    def state_evicted(self, key: bytes) -> None:
        """The snapshot at `key` is gone."""
        self._remember(self._states, key)

    def kv_evicted(self, key: bytes) -> None:
        """The KV of the unit that ends at `key` is gone."""
        self._remember(self._kv, key)

    def deepest_state(self, keys: Sequence[bytes]) -> int:
        """How many of a path's full keys lead to the deepest one whose snapshot was evicted; 0 for none."""
        return _deepest(self._states, keys)

    def deepest_kv(self, keys: Sequence[bytes]) -> int:
        """How many of a path's full keys lead to the deepest one whose KV was evicted; 0 for none."""
        return _deepest(self._kv, keys)

    def clear(self) -> None:
        """Forget everything."""
        self._states.clear()
        self._kv.clear()

    def _remember(self, memory: dict[bytes, None], key: bytes) -> None:
        memory.pop(key, None)
        memory[key] = None
        if len(memory) > self._capacity:
            del memory[next(iter(memory))]


def _deepest(memory: dict[bytes, None], keys: Sequence[bytes]) -> int:
    if not memory:
        return 0
    key = next(filter(memory.__contains__, reversed(keys)), None)
    return 0 if key is None else len(keys) - keys[::-1].index(key)
