"""Whether a prompt's beginning is known under another salt: only to explain misses to the operator."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.prefix.keys import Hasher, Key

__all__ = ["SaltMemory"]

_CAPACITY = 1 << 14


class SaltMemory:
    """Under which salt the first units of recent prompts came; bounded, and never used for a hit."""

    def __init__(self, hasher: Hasher) -> None:
        self._hasher = hasher
        self._salts: dict[Key, str | None] = {}  # None: more than one

    def clear(self) -> None:
        """Forget everything."""
        self._salts.clear()

    def seen_elsewhere(self, salt: str, tokens: Sequence[int], *, note: bool = True) -> bool:
        """Whether the prompt's first unit came under another salt before; notes that it came under this."""
        chain = self._hasher.chain()
        chain.extend(tokens[: self._hasher.match_unit])
        if not chain.full:
            return False
        known = self._salts.get(chain.full[0], salt)
        if note:
            self._salts.pop(chain.full[0], None)  # the last noted goes last
            self._salts[chain.full[0]] = salt if known == salt else None
            if len(self._salts) > _CAPACITY:
                del self._salts[next(iter(self._salts))]
        return known != salt
