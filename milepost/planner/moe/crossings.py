"""From how many tokens on another tail is the quickest."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec

from milepost.planner.moe.tails import TailTimes, note_tail_facts, note_tails
from milepost.planner.worksheet import Worksheet

__all__ = ["TailRange", "tail_ranges"]

_NEEDED = (
    *("hidden_size", "expert_width", "device.domain", "device.link_latency", "device.scale_out_latency"),
    *("device.kernel_seconds", "rate.link", "rate.scale_out", "rate.memory", "rate.bf16"),
)


class TailRange(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a step for which one tail is the quickest.

    Attributes:
        ranks: tensor parallel degree.
        multicast: whether the hardware can store to all ranks at once, which the "scattered" tail needs.
        first_tokens: of the range.
        last_tokens: of the range, itself in it.
        best: name of the tail.
    """

    ranks: int
    multicast: bool
    first_tokens: int
    last_tokens: int
    best: str


def tail_ranges(sheet: Worksheet, known: tuple[TailTimes, ...], *, multicast: bool) -> tuple[TailRange, ...]:
    """Ranges between the first and the last of some points of one tensor parallel degree.

    Between two neighbours with another winner the change is found to the token; a tail that wins between two
    neighbours only is not seen.
    """
    ranks = known[0].ranks
    ask = _times(sheet, ranks)
    found: list[TailRange] = []
    first, best = known[0].tokens, known[0].winner(multicast=multicast)
    for before, after in pairwise(known):
        name = after.winner(multicast=multicast)
        if name == best:
            continue
        start = _first_with(name, before.tokens, after.tokens, ask, multicast=multicast)
        found.append(_range(ranks, first, start - 1, best, multicast=multicast))
        first, best = start, name
    found.append(_range(ranks, first, known[-1].tokens, best, multicast=multicast))
    return tuple(found)


def _range(ranks: int, first: int, last: int, best: str, *, multicast: bool) -> TailRange:
    return TailRange(ranks=ranks, multicast=multicast, first_tokens=first, last_tokens=last, best=best)


def _times(sheet: Worksheet, ranks: int) -> Callable[[int], TailTimes]:
    def ask(tokens: int) -> TailTimes:
        scratch = Worksheet()
        for name in _NEEDED:
            scratch.given(name, sheet[name], "", "the plan")
        note_tail_facts(scratch, "group", ranks)
        return note_tails(scratch, "group", "tail", tokens)

    return ask


def _first_with(best: str, low: int, high: int, ask: Callable[[int], TailTimes], *, multicast: bool) -> int:
    """The fewest tokens above `low`, up to `high`, from which `best` wins."""
    while high - low > 1:
        middle = (low + high) // 2
        if ask(middle).winner(multicast=multicast) == best:
            high = middle
        else:
            low = middle
    return high
