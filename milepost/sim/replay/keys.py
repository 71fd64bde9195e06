"""Prefix keys of a trace's blocks: numbers that follow from the ids, since nothing is there to be hashed.

    key of position P  =  id of the block that holds token P - 1, times block_size, plus its place there

Ids are chained, so equal keys mean equal prefixes. Inside a block the key still depends on the whole
block: two prompts that part in it share none of its tokens, as far as the trace can tell.
"""

from __future__ import annotations

from collections.abc import Sequence

from milepost.errors import ConfigError, InputError
from milepost.prefix.keys import Key
from milepost.sim.traces.block_tokens import BlockTokens

__all__ = ["BlockHasher", "BlockKeys"]

_ROOT = b""


class BlockHasher:
    """Makes the keys of prompts that are `BlockTokens`.

    Args:
        match_unit: tokens between two keys; a divisor or a multiple of `block_size`.
        block_size: tokens of the trace's blocks.

    Raises:
        ConfigError: a match unit that does not fit the blocks.
    """

    def __init__(self, match_unit: int, block_size: int) -> None:
        if match_unit < 1 or (match_unit % block_size and block_size % match_unit):
            raise ConfigError(
                f"match_unit must be a multiple or a divisor of the {block_size} tokens that the trace knows "
                f"as one block. Given: {match_unit}."
            )
        self._match_unit = match_unit
        self.block_size = block_size

    @property
    def match_unit(self) -> int:
        """Tokens between two full keys."""
        return self._match_unit

    def chain(self, salt: str = "") -> BlockKeys:  # noqa: ARG002 - traces have no salts
        """The keys of an empty sequence."""
        return BlockKeys(self)


class BlockKeys:
    """Keys of one prompt and of what is drawn behind it; use `BlockHasher.chain`.

    Attributes:
        root: key of position 0.
        full: keys at multiples of the match unit, as far as the prompt goes: output is never looked up.
    """

    __slots__ = ("_hasher", "full", "root")

    def __init__(self, hasher: BlockHasher) -> None:
        self._hasher = hasher
        self.root = _ROOT
        self.full: list[int] = []

    def extend(self, tokens: Sequence[int]) -> None:
        """Make `full` reach to the prompt's end.

        Raises:
            InputError: tokens that are no blocks of a trace.
        """
        prompt, unit, size = _blocks(tokens), self._hasher.match_unit, self._hasher.block_size
        units = prompt.num_prompt // unit
        if units <= len(self.full):
            return
        if unit % size == 0:
            step = unit // size
            keys: list[int] = []
            for run in prompt.runs:
                keys += range(run.start * size + size - 1, run.stop * size + size - 1, size)
            self.full = keys[step - 1 : units * step : step]
        else:
            self.full = [
                block_id * size + place
                for block_id in prompt.block_ids(0, -(-units * unit // size))
                for place in range(unit - 1, size, unit)
            ][:units]

    def key_at(self, tokens: Sequence[int], position: int) -> Key:
        """The key of the first `position` of `tokens`, the prompt's or what is drawn behind it."""
        units, rest = divmod(position, self._hasher.match_unit)
        if not rest and units <= len(self.full):
            return self.full[units - 1] if units else self.root
        return tokens[position - 1]


def _blocks(tokens: Sequence[int]) -> BlockTokens:
    if not isinstance(tokens, BlockTokens):
        raise InputError(f"A trace's keys need prompts of blocks. Given: {type(tokens).__name__}.")
    return tokens
