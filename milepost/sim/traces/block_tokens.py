"""Tokens of which a trace tells only which blocks of them are equal.

A trace without text names each block of `block_size` tokens by an id; two prompts that share an id share
all tokens from their beginning to that block's end (ids are *chained*). So tokens are never spelled out:
a prompt is a few runs of consecutive ids, and its prefix keys follow from them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import overload

from milepost.errors import InputError
from milepost.types import SymbolicTokens

__all__ = ["BlockTokens", "TokenSpan", "runs_of"]


def runs_of(ids: Iterable[int]) -> tuple[range, ...]:
    """`ids` as runs of consecutive numbers, in order."""
    runs: list[range] = []
    start = end = -1
    for block_id in ids:
        if block_id != end or start < 0:
            if start >= 0:
                runs.append(range(start, end))
            start = block_id
        end = block_id + 1
    if start >= 0:
        runs.append(range(start, end))
    return tuple(runs)


class BlockTokens(SymbolicTokens):
    """A prompt, and what is drawn behind it.

    Two of them are equal in a token exactly if their blocks there have the same id; tokens that are drawn
    behind the prompt equal nobody's, since a trace does not say what they were.

    Args:
        runs: ids of the prompt's blocks, a partly filled last one included, as runs of consecutive ids;
            0 or more, chained, the same number for the same block all over the trace.
        num_tokens: of the prompt.
        block_size: tokens of a block; the last one may hold fewer.
        num_drawn: tokens drawn behind the prompt.

    Raises:
        InputError: too few or too many ids for so many tokens.
    """

    __slots__ = ("_drawn", "_ends", "block_size", "num_prompt", "runs")

    def __init__(
        self, runs: Sequence[range], num_tokens: int, block_size: int, *, num_drawn: int = 0
    ) -> None:
        self.runs = tuple(runs)
        self.num_prompt = num_tokens
        self.block_size = block_size
        self._drawn = num_drawn
        self._ends = list(accumulate(map(len, self.runs)))
        blocks = self._ends[-1] if self._ends else 0
        if blocks != -(-num_tokens // block_size):
            raise InputError(
                f"{num_tokens} tokens need {-(-num_tokens // block_size)} blocks of {block_size}. "
                f"Given: {blocks} ids."
            )

    def __len__(self) -> int:
        return self.num_prompt + self._drawn

    def __iter__(self) -> Iterator[int]:
        return map(self._token, range(len(self)))

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return TokenSpan(self, range(len(self))[index])
        return self._token(range(len(self))[index])

    def append(self, token_id: int) -> None:  # noqa: ARG002 - nobody knows what it was
        """Take one drawn token."""
        self._drawn += 1

    def copy(self) -> BlockTokens:
        """The same tokens, to grow by themselves."""
        return BlockTokens(self.runs, self.num_prompt, self.block_size, num_drawn=self._drawn)

    def block_ids(self, first: int, end: int) -> list[int]:
        """Ids of the prompt's blocks from `first` to before `end`."""
        if len(self.runs) == 1:
            return list(self.runs[0][first:end])
        ids: list[int] = []
        start = 0
        for run, stop in zip(self.runs, self._ends, strict=True):
            if stop > first and start < end:
                ids += run[max(0, first - start) : end - start]
            start = stop
        return ids

    def block_id(self, block: int) -> int:
        """Id of the prompt's `block`-th block."""
        place = bisect_right(self._ends, block)
        return self.runs[place][block - (self._ends[place - 1] if place else 0)]

    def _token(self, position: int) -> int:
        """A number that equals that of another prompt exactly where the tokens are known to be equal."""
        if position >= self.num_prompt:
            return -1 - id(self)  # nobody else's
        block, offset = divmod(position, self.block_size)
        return self.block_id(block) * self.block_size + offset


class TokenSpan(Sequence[int]):
    """Some of a sequence's tokens, by reference: a chunk of thousands costs nothing until it is read."""

    __slots__ = ("_positions", "_tokens")

    def __init__(self, tokens: BlockTokens, positions: range) -> None:
        self._tokens = tokens
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[int]: ...
    def __getitem__(self, index: int | slice) -> int | Sequence[int]:
        if isinstance(index, slice):
            return TokenSpan(self._tokens, self._positions[index])
        return self._tokens[self._positions[index]]
