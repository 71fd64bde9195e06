"""Chained ids: an id that stands for a block *and* all that is before it.

Only with chained ids do equal ids mean equal prefixes. Where a trace's ids name a block by its own
content, reuse read from them is overstated: the same paragraph in the middle of two prompts would count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from milepost.sim.traces.block_tokens import BlockTokens

__all__ = ["Chainer", "chained", "is_chained"]


class _Node:
    """Blocks that follow each other without a branch, and what branches off behind the last one."""

    __slots__ = ("children", "first", "ids")

    def __init__(self, ids: Sequence[int], first: int) -> None:
        self.ids = ids
        self.first = first  # chained id of ids[0]; the others count on
        self.children: dict[int, _Node] = {}

    def split(self, length: int) -> None:
        """End after `length` blocks; the rest becomes the only child."""
        rest = _Node(self.ids[length:], self.first + length)
        rest.children, self.children = self.children, {rest.ids[0]: rest}
        self.ids = self.ids[:length]


class Chainer:
    """Gives each prefix of what it has seen a number: a radix tree over prompts.

    Attributes:
        num_ids: numbers that are given away: 0 .. num_ids - 1, in the order of first sight.
    """

    def __init__(self) -> None:
        self.num_ids = 0
        self._root = _Node((), 0)

    def add(self, ids: Sequence[int]) -> tuple[list[range], int]:
        """Chain one prompt's `ids`; returns (their numbers as runs, how many of them were seen before)."""
        node, at, runs = self._root, 0, list[range]()
        while at < len(ids):
            child = node.children.get(ids[at])
            if child is None:
                _extend(runs, self._grow(node, ids[at:]))
                return runs, at
            length = _common(child.ids, ids, at)
            _extend(runs, range(child.first, child.first + length))
            at += length
            if length < len(child.ids):
                if at == len(ids):
                    break
                child.split(length)
            node = child
        return runs, len(ids)

    def take(self) -> int:
        """A number that no prefix has."""
        self.num_ids += 1
        return self.num_ids - 1

    def _grow(self, node: _Node, ids: Sequence[int]) -> range:
        first, self.num_ids = self.num_ids, self.num_ids + len(ids)
        node.children[ids[0]] = _Node(ids, first)
        return range(first, self.num_ids)


def _common(known: Sequence[int], ids: Sequence[int], at: int) -> int:
    """How many of `known` stand in `ids` from `at` on."""
    length = min(len(known), len(ids) - at)
    low, high = 0, length
    if known[:length] == ids[at : at + length]:
        return length
    while low < high:  # known[:low] is equal, known[:high + 1] is not
        middle = (low + high + 1) // 2
        if known[low:middle] == ids[at + low : at + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _extend(runs: list[range], run: range) -> None:
    if runs and runs[-1].stop == run.start:
        run = range(runs.pop().start, run.stop)
    runs.append(run)


def is_chained(prompts: Iterable[BlockTokens]) -> bool:
    """Whether each id has the same ids before it wherever it stands."""
    before: dict[int, int] = {}  # first id of a run -> the id before it, -1 at a prompt's beginning
    ends: dict[int, int] = {}
    for prompt in prompts:
        start = last = -1
        for run in prompt.runs:
            if run.start != last + 1 or start < 0:
                start = run.start
                if before.setdefault(start, last) != last:
                    return False
            ends[start] = max(ends.get(start, 0), run.stop)
            last = run.stop - 1
    reached = 0
    for start in sorted(ends):
        if start < reached:  # in the middle of another run, so the id before it differs there
            return False
        reached = max(reached, ends[start])
    return True


def chained(prompts: Iterable[BlockTokens]) -> list[BlockTokens]:
    """The same prompts with chained ids."""
    chainer = Chainer()
    return [
        BlockTokens(
            chainer.add([block_id for run in prompt.runs for block_id in run])[0],
            prompt.num_prompt,
            prompt.block_size,
        )
        for prompt in prompts
    ]
