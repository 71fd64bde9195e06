"""Kinds of places: rows of a life table, told apart by what is known when a prompt comes.

    any ─┬─ inside a prompt that was known to go on behind it
         ├─ asked for ── once, twice, three times, oftener
         └─ the end of a prompt that goes on from 0, 1, 2, 3 or more earlier ones
              └─ with less than 512 tokens that are new, less than 1,024, ..., from 128 Ki on

A kind takes the hazards of the one that it belongs to until it has its own. On the traces that we have, these
are the differences that count: a conversation that has gone on three times goes on two to three times as
often as a first prompt, and one that is many new tokens behind what it goes on from is another conversation.
"""

from __future__ import annotations

from milepost.prefix.stays import Visit

__all__ = ["ANY", "INSIDE", "WIDER", "kind_of_end", "kind_of_passed"]

ANY, INSIDE, _PASSED = 0, 1, 2

_MOST_PASSES = 4
_MOST_TURNS = 3
_SMALLEST = 9  # bits: sizes below 512 tokens are one
_SIZES = 10

_ENDS = _PASSED + _MOST_PASSES + 1
_ROWS_A_TURN = 1 + _SIZES


def _wider() -> list[int]:
    rows = [-1, ANY, ANY] + [_PASSED] * _MOST_PASSES
    for _ in range(_MOST_TURNS + 1):
        rows += [ANY] + [len(rows)] * _SIZES
    return rows


WIDER = _wider()
"""Of each kind the wider one, which comes before it; -1 for none."""


def kind_of_passed(passes: int) -> int:
    """Of a place that was asked for `passes` times, at least once."""
    return _PASSED + min(passes, _MOST_PASSES)


def kind_of_end(visit: Visit) -> int:
    """Of the end of a prompt whose first look-up told this."""
    size = min(max(visit.added.bit_length() - _SMALLEST, 0), _SIZES - 1)
    return _ENDS + min(visit.turns, _MOST_TURNS) * _ROWS_A_TURN + 1 + size
