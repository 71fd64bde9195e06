"""From how many tokens on another tail is the quickest."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import msgspec

from milepost.planner.moe.tails import TailTimes, note_tail_facts, note_tails
from milepost.planner.worksheet import Worksheet

__all__ = ["TailRange", "tail_ranges"]

_NEEDED = (
    *("hidden", "expert_width", "device.domain", "device.link_latency", "device.scale_out_latency"),
    *("device.kernel_seconds", "rate.link", "rate.scale_out", "rate.memory", "rate.bf16"),
)


class TailRange(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a step for which one tail is the quickest, from `first_tokens` to `last_tokens`."""

    ranks: int
    first_tokens: int
    last_tokens: int
    best: str


def tail_ranges(sheet: Worksheet, known: tuple[TailTimes, ...]) -> tuple[TailRange, ...]:
    """Ranges between the first and the last of some points of one tensor parallel degree.

    Between two neighbours with another winner the change is found to the token; a tail that wins between two
    neighbours only is not seen.
    """
    ranks = known[0].ranks
    winner = _winner(sheet, ranks)
    found: list[TailRange] = []
    first, best = known[0].tokens, known[0].best
    for before, after in pairwise(known):
        if after.best == best:
            continue
        start = _first_with(after.best, before.tokens, after.tokens, winner)
        found.append(TailRange(ranks=ranks, first_tokens=first, last_tokens=start - 1, best=best))
        first, best = start, after.best
    found.append(TailRange(ranks=ranks, first_tokens=first, last_tokens=known[-1].tokens, best=best))
    return tuple(found)


def _winner(sheet: Worksheet, ranks: int) -> Callable[[int], str]:
    def ask(tokens: int) -> str:
        scratch = Worksheet()
        for name in _NEEDED:
            scratch.given(name, sheet[name], "", "the plan")
        note_tail_facts(scratch, "group", ranks)
        return note_tails(scratch, "group", "tail", tokens).best

    return ask


def _first_with(best: str, low: int, high: int, winner: Callable[[int], str]) -> int:
    """The fewest tokens above `low`, up to `high`, from which `best` wins."""
    while high - low > 1:
        middle = (low + high) // 2
        if winner(middle) == best:
            high = middle
        else:
            low = middle
    return high
