"""Results as one HTML file with interactive plots, which loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from milepost.errors import InputError
from milepost.sim.reports.files import save
from milepost.sim.reports.html_table import html_table
from milepost.sim.reports.labels import Names, budget_text, count_text, is_own
from milepost.sim.reports.looks import Look, looks_of
from milepost.sim.reports.page_frame import Page, filled, notes_html, page_html, tiles_html
from milepost.sim.reports.plots import Comparison
from milepost.sim.reports.run_plots import facts, run_plots
from milepost.sim.runs import RunResult

__all__ = ["to_html", "write_html"]


def write_html(
    results: Sequence[RunResult], path: Path, *, command: str = "", present: RunResult | None = None
) -> None:
    """Write `to_html` to `path`.

    Raises:
        ConfigError: plotly is not installed.
        InputError: there are no results, or the file can't be written.
    """
    save(path, to_html(results, command=command, present=present).encode())


def to_html(results: Sequence[RunResult], *, command: str = "", present: RunResult | None = None) -> str:
    """The page.

    Args:
        results: of one workload or several; the reader chooses.
        command: the command line that made them.
        present: what gains are counted over, as in `milepost.sim.reports.table`.

    Raises:
        ConfigError: plotly is not installed.
        InputError: there are no results.
    """
    if not results:
        raise InputError("A report needs at least one result. Given: none.")
    names = Names(results)
    looks = looks_of(results, names)
    traces = list(dict.fromkeys(result.trace for result in results))
    notes = dict.fromkeys(note for result in results for note in result.notes)
    parts = {
        "latency": escape(_latency(results)),
        "caption": "Click a column's name to sort by it. GB are 10<sup>9</sup> bytes, means over time.",
        "table": html_table(results, names, present),
        "notes": notes_html((*notes, *_GENERAL_NOTES), command),
    }
    return page_html(
        Page(
            brand="simulate",
            title=f"{', '.join(traces[:3])}{' and others' if len(traces) > 3 else ''}: which snapshots pay",
            lead=_shared(names),
            tiles_html=tiles_html(_tiles(results, names)),
            head_html=_winners(results, names) + _WORKLOADS,
            body_html=filled("simulate.html", parts),
            data={"workloads": _workloads(results, names, looks)},
            script="simulate.js",
        )
    )


_WORKLOADS = '<p class="workloads" hidden><label>Workload <select id="workload"></select></label></p>'
_GENERAL_NOTES = (
    "Every figure comes from a replay of the trace through Milepost's own scheduler, index and policies.",
    "Presets are simplified models of other engines.",
    "A hit is tokens that were not computed: their KV and a snapshot of the state at their end were cached.",
)


def _workloads(results: Sequence[RunResult], names: Names, looks: dict[str, Look]) -> list[dict[str, Any]]:
    groups: dict[str, list[RunResult]] = {}
    for result in results:
        groups.setdefault(names.workload(result), []).append(result)
    return [
        {
            "name": name,
            "plots": Comparison(group, names, looks).plots(),
            "first": max(range(len(group)), key=lambda i: _interest(group[i])),
            "runs": [
                {"name": names.run(result), "facts": facts(result), "plots": run_plots(result)}
                for result in group
            ],
        }
        for name, group in groups.items()
    ]


def _interest(result: RunResult) -> tuple[bool, bool, float]:
    """What is shown first: our own engine with a limit, where it hits most."""
    return is_own(result), result.budget_bytes is not None, result.hit_rate


# -- the head ---------------------------------------------------------------------------------------


def _shared(names: Names) -> str:
    """What all runs have in common, as a sentence."""
    words = [f"{name} {value}" for name, value in names.constant.items() if name != "trace"]
    return f"All runs: {', '.join(words)}." if words else ""


def _tiles(results: Sequence[RunResult], names: Names) -> list[tuple[str, str, str]]:
    best = max(results, key=lambda result: (is_own(result), result.hit_rate))
    most = max(results, key=lambda result: result.input_tokens)
    return [
        ("requests", f"{most.requests:,}", "" if _same(results, "requests") else "at most, of the runs"),
        ("input tokens", count_text(most.input_tokens), ""),
        ("runs", f"{len(results):,}", ""),
        ("best hit rate", f"{best.hit_rate:.2%}", names.run(best)),
    ]


def _same(results: Sequence[RunResult], field: str) -> bool:
    return len({getattr(result, field) for result in results}) == 1


def _winners(results: Sequence[RunResult], names: Names) -> str:
    """The best of our own policies at each budget, where there is something to choose from."""
    own = [result for result in results if is_own(result)]
    if len({names.workload(result) for result in results}) > 1:
        return ""
    budgets = sorted({result.budget_bytes for result in own}, key=lambda b: (b is None, b or 0))
    if len({names.series(result) for result in own}) < 2 or len(budgets) > 12:
        return ""
    rows = []
    for budget in budgets:
        best = max((r for r in own if r.budget_bytes == budget), key=lambda result: result.hit_rate)
        rows.append(
            f"<li><span>{budget_text(budget)}</span><em>{escape(names.series(best))}</em>"
            f"<b>{best.hit_rate:.2%}</b></li>"
        )
    return f'<div class="winners"><h2>Best of Milepost at each budget</h2><ol>{"".join(rows)}</ol></div>'


def _latency(results: Sequence[RunResult]) -> str:
    if all(result.ttft is None for result in results):
        return "Time to first token and time per output token."
    queueing = {result.queueing for result in results}
    how = "with queueing or alone, as the workload says"
    if queueing == {True}:
        how = "with queueing: requests wait for each other and share steps"
    elif queueing == {False}:
        how = "of an idle engine: each request is served alone, the moment it arrives"
    return f"Time to first token and time per output token, {how}."
