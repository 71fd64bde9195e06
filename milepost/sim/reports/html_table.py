"""The table of the HTML report: complete without scripts, sorted with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape

from milepost.sim.reports.labels import FIELDS, Names, baselines, cause_text
from milepost.sim.runs import RunResult

__all__ = ["html_table"]

_NUMBERS: dict[str, Callable[[RunResult], float | None]] = {
    "budget": lambda r: float("inf") if r.budget_bytes is None else r.budget_bytes,
    "match unit": lambda r: r.match_unit,
    "block": lambda r: r.block_size,
}

_MEASURES: tuple[tuple[str, str, Callable[[RunResult], float | None]], ...] = (
    ("snapshots / request", ".2f", lambda r: r.snapshots_per_request),
    ("used", ",d", lambda r: r.snapshots_used),
    ("states GB", ",.4g", lambda r: r.state_bytes_mean / 1e9),
    ("KV GB", ",.4g", lambda r: r.kv_bytes_mean / 1e9),
    ("TTFT p50 s", ".3g", lambda r: r.ttft.p50 if r.ttft else None),
    ("TTFT p90 s", ".3g", lambda r: r.ttft.p90 if r.ttft else None),
    ("TPOT p50 ms", ".3g", lambda r: r.tpot.p50 * 1e3 if r.tpot else None),
    ("goodput / s", ".3g", lambda r: r.goodput),
    ("refused", ",d", lambda r: r.refused),
    ("preempted", ",d", lambda r: r.preemptions),
)
_OPTIONAL = ("TTFT p50 s", "TTFT p90 s", "TPOT p50 ms", "goodput / s", "refused", "preempted")


def html_table(results: Sequence[RunResult], names: Names, present: RunResult | None = None) -> str:
    """A ``<table>`` with a row a result; columns that are the same everywhere are left out."""
    bases = baselines(results, present)
    columns: list[tuple[str, list[str]]] = []
    for name in names.varying or ["policy"]:
        number = _NUMBERS.get(name)
        columns.append(
            (name, [_field(FIELDS[name](r), None if number is None else number(r)) for r in results])
        )
    columns.append(("hit rate", [_number(r.hit_rate, f"{r.hit_rate:.2%}") for r in results]))
    gains = [100 * (r.hit_rate - base.hit_rate) for r, base in zip(results, bases, strict=True)]
    if len(results) > 1:
        cells = [
            _number(gain, "·" if r is base else f"{gain:+.2f}")
            for gain, r, base in zip(gains, results, bases, strict=True)
        ]
        columns.append(("gain, points", cells))
    for title, form, measure in _MEASURES:
        values = [measure(result) for result in results]
        if title not in _OPTIONAL or any(values):
            columns.append((title, [_number(v, "-" if v is None else format(v, form)) for v in values]))
    for cause in dict.fromkeys(cause for r in results for cause, count in r.losses.items() if count):
        shares = [r.losses.get(cause, 0) / max(r.input_tokens, 1) for r in results]
        columns.append((cause_text(cause), [_number(share, f"{share:.1%}") for share in shares]))
    head = "".join(
        f'<th scope="col"{_side(cells)}><button type="button">{escape(title)}</button></th>'
        for title, cells in columns
    )
    rows = zip(*(cells for _, cells in columns), strict=True)
    body = "".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _side(cells: Sequence[str]) -> str:
    return ' class="number"' if cells[0].startswith('<td class="number"') else ""


def _field(text: str, number: float | None) -> str:
    return f'<td class="name">{escape(text)}</td>' if number is None else _number(number, text)


def _number(value: float | None, text: str) -> str:
    """A cell that sorts by its value, last where it has none."""
    by = "" if value is None else "1e999" if value == float("inf") else f"{value:.9g}"
    return f'<td class="number" data-value="{by}">{escape(text)}</td>'
