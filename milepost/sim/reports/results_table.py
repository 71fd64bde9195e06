"""Results as a table for the terminal: columns that differ, and below it what all rows share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.markup import escape
from rich.table import Table

from milepost.sim.reports.labels import FIELDS, Names, baselines, cause_text, count_text, seconds_text
from milepost.sim.runs import RunResult

__all__ = ["table"]

_GB = 1e9
_PADDING = 3
_TOP_LOSSES = 2
_LEAST_SHARE = 0.01
_NARROWEST_NAME = 14


class _Column(msgspec.Struct, frozen=True):
    """A column that may be left out where there is no room: the greatest `rank` goes first, 0 never."""

    title: str
    cells: list[str]
    rank: int
    right: bool = True

    @property
    def width(self) -> int:
        return max(map(cell_len, [self.title, *self.cells]))

    @property
    def least(self) -> int:
        """Numbers keep their line; a name may be folded once, and not to shreds."""
        return (
            self.width if self.right or self.rank else min(self.width, max(_NARROWEST_NAME, self.width // 2))
        )


def table(results: Sequence[RunResult], present: RunResult | None = None, *, width: int = 200) -> Table:
    """A row a result.

    Args:
        results: in the order of the rows.
        present: what gains are counted over, at each row's budget where it was run there too; the first
            result by default.
        width: of the terminal, in characters. Columns that don't fit are left out, the least important
            first, and named in the caption.
    """
    if not results:
        return Table("No results.", box=SIMPLE_HEAD)
    names = Names(results)
    columns = [column for column in _columns(results, names, present) if any(column.cells)]
    shown, dropped = _fit(columns, width)
    rendered = Table(box=SIMPLE_HEAD, caption=_caption(results, names, dropped), caption_justify="left")
    for column in shown:
        rendered.add_column(
            escape(column.title),
            justify="right" if column.right else "left",
            no_wrap=column.right,
            min_width=column.least,
            overflow="fold",
        )
    for cells in zip(*(column.cells for column in shown), strict=True):
        rendered.add_row(*map(escape, cells))
    return rendered


def _columns(results: Sequence[RunResult], names: Names, present: RunResult | None) -> list[_Column]:
    spare = _spare(results, names.varying)
    columns = [
        _Column(
            name, [FIELDS[name](r) for r in results], _SPARE_RANK if name in spare else 0, name in _NUMBERS
        )
        for name in names.varying
    ]
    if not names.varying:
        columns.append(_Column("policy", [FIELDS["policy"](result) for result in results], 0, right=False))
    bases = baselines(results, present)
    columns.append(_column("hit rate", 0, results, lambda r: f"{r.hit_rate:.2%}"))
    if len(results) > 1 or present is not None:
        gains = [
            "" if present is None and result.budget_bytes != base.budget_bytes else _gain(result, base)
            for result, base in zip(results, bases, strict=True)
        ]
        columns.append(_Column("gain", gains, 2))
    columns += [_column(title, rank, results, text) for title, rank, text in _MEASURES]
    columns.append(_Column("top losses", [_top_losses(result) for result in results], 7, right=False))
    return columns


_NUMBERS = ("budget", "match unit", "block")
_FOLLOWING = ("block", "layout", "eviction")
_SPARE_RANK = 3


def _spare(results: Sequence[RunResult], varying: Sequence[str]) -> set[str]:
    """Columns that follow from the others, as a preset's layout does: rows stay apart without them."""
    spare: set[str] = set()
    for name in _FOLLOWING:
        kept = [other for other in varying if other not in spare and other != name]
        if name in varying and len({tuple(FIELDS[k](r) for k in kept) for r in results}) == len(results):
            spare.add(name)
    return spare


_MEASURES: tuple[tuple[str, int, Callable[[RunResult], str]], ...] = (
    ("snaps/req", 6, lambda r: f"{r.snapshots_per_request:.2f}"),
    ("states GB", 4, lambda r: _gb(r.state_bytes_mean)),
    ("KV GB", 5, lambda r: _gb(r.kv_bytes_mean)),
    ("TTFT p50", 3, lambda r: seconds_text(r.ttft.p50) if r.ttft else ""),
    ("TTFT p90", 1, lambda r: seconds_text(r.ttft.p90) if r.ttft else ""),
    ("TPOT p50", 9, lambda r: seconds_text(r.tpot.p50) if r.tpot else ""),
    ("goodput/s", 8, lambda r: "" if r.goodput is None else f"{r.goodput:.3g}"),
    ("refused", 1, lambda r: f"{r.refused:,}" if r.refused else ""),
    ("preempted", 10, lambda r: f"{r.preemptions:,}" if r.preemptions else ""),
)


def _column(title: str, rank: int, results: Sequence[RunResult], text: Callable[[RunResult], str]) -> _Column:
    return _Column(title, [text(result) for result in results], rank)


def _gb(count: float) -> str:
    number = count / _GB
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}" if number >= 1 else f"{number:.3g}"


def _gain(result: RunResult, base: RunResult) -> str:
    return "·" if result is base else f"{100 * (result.hit_rate - base.hit_rate):+.2f}"


def _top_losses(result: RunResult) -> str:
    lost = sorted(result.losses.items(), key=lambda item: -item[1])[:_TOP_LOSSES]
    share = max(result.input_tokens, 1)
    return ", ".join(f"{cause_text(cause)} {_share(count / share)}" for cause, count in lost if count)


def _share(share: float) -> str:
    if share >= _LEAST_SHARE:
        return f"{share:.0%}"
    return f"{share:.1%}" if share >= _LEAST_SHARE / 10 else "<0.1%"


def _fit(columns: list[_Column], width: int) -> tuple[list[_Column], list[str]]:
    """Columns for `width` characters, and the titles of those that are left out."""
    dropped: list[str] = []
    while _least_width(columns) > width and (spare := [c for c in columns if c.rank]):
        least = max(spare, key=lambda column: column.rank)
        columns = [column for column in columns if column is not least]
        dropped.append(least.title)
    # Names need not be folded for the sake of what follows from them.
    for following in [column for column in columns if column.rank and column.title in _FOLLOWING]:
        if 1 + sum(column.width + _PADDING for column in columns) > width:
            columns = [column for column in columns if column is not following]
            dropped.append(following.title)
    return columns, dropped


def _least_width(columns: Sequence[_Column]) -> int:
    return 1 + sum(column.least + _PADDING for column in columns)


def _caption(results: Sequence[RunResult], names: Names, dropped: Sequence[str]) -> str:
    constant = [f"{name} {value}" for name, value in names.constant.items() if name != "policy"]
    if names.varying and "policy" in names.constant:
        constant.append(f"policy {names.constant['policy']}")
    requests, tokens = ({getattr(r, name) for r in results} for name in ("requests", "input_tokens"))
    if len(requests) == len(tokens) == 1:
        constant.append(f"{requests.pop():,} requests, {count_text(tokens.pop())} input tokens")
    lines = [", ".join(constant) + "."]
    if len(results) > 1:
        lines.append(
            "Gain: points of hit rate over the row marked · of the same budget. GB: 10^9 bytes, means."
        )
    if dropped:
        lines.append(f"No room for: {', '.join(dropped)}. A wider terminal or --json shows them.")
    return escape("\n".join(lines))
