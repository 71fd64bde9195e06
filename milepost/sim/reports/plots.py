"""The plots that compare runs of one workload, as plotly's plain data; the page adds its theme.

A plot is ``{"views": [{"name", "data", "layout"}]}``, of which the reader sees one at a time, or
``{"empty": why}``. Names may be anything: what plotly would read as markup is escaped.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from milepost.sim.reports.budget_axis import BudgetAxis, bytes_axis
from milepost.sim.reports.labels import (
    CAUSES,
    Names,
    budget_text,
    bytes_text,
    cause_text,
    policy_text,
    seconds_text,
)
from milepost.sim.reports.looks import CAUSE_COLOURS, HIT_COLOUR, Look
from milepost.sim.runs import RunResult

__all__ = ["Comparison", "front"]

Plot = dict[str, Any]
Measure = Callable[[RunResult], float | None]

NO_TIMES = "No model of time was used, so there are no latencies."
_LATENCIES: tuple[tuple[str, Measure], ...] = (
    ("TTFT p50", lambda r: r.ttft.p50 if r.ttft else None),
    ("TTFT p90", lambda r: r.ttft.p90 if r.ttft else None),
    ("TTFT p99", lambda r: r.ttft.p99 if r.ttft else None),
    ("TPOT p50", lambda r: r.tpot.p50 if r.tpot else None),
    ("TPOT p90", lambda r: r.tpot.p90 if r.tpot else None),
)
_BAR = 34
_LABEL_CHARS = 24


class Comparison:
    """Plots of one workload's results.

    Args:
        results: all of the same workload.
        names: of all results of the report.
        looks: of all series of the report.
    """

    def __init__(self, results: Sequence[RunResult], names: Names, looks: dict[str, Look]) -> None:
        self._names = names
        self._looks = looks
        self._axis = BudgetAxis(results)
        self._results = results
        self._series: dict[str, list[RunResult]] = {}
        for result in results:
            self._series.setdefault(names.series(result), []).append(result)

    def plots(self) -> dict[str, Plot]:
        """All of them, by the id of their place on the page."""
        return {
            "hits": {"views": [self._over_budget("hit rate", lambda r: r.hit_rate, _SHARE)]},
            "latency": self._latencies(),
            "losses": {"views": [self._losses(b) for b in self._budgets()]},
            "pareto": {"views": self._fronts()},
        }

    # -- lines over the budget ------------------------------------------------------------------

    def _over_budget(self, name: str, measure: Measure, axis: dict[str, Any]) -> Plot:
        data = []
        for series, results in self._series.items():
            points = sorted(
                (self._axis.place(result.budget_bytes), value, self._hover(result))
                for result in results
                if (value := measure(result)) is not None
            )
            if points:
                x, y, text = zip(*points, strict=True)
                data.append(self._trace(series, x, y, text, mode="lines+markers"))
        layout = {"xaxis": self._axis.axis(), "yaxis": axis, "shapes": self._axis.shapes()}
        return {"name": name, "data": data, "layout": layout}

    def _latencies(self) -> Plot:
        views = [self._over_budget(name, measure, _SECONDS) for name, measure in _LATENCIES]
        views = [view for view in views if view["data"]]
        if not views:
            return {"empty": NO_TIMES}
        first = next((i for i, view in enumerate(views) if view["name"] == "TTFT p90"), 0)
        return {"views": views, "first": first}

    # -- shares of the input ----------------------------------------------------------------------

    def _budgets(self) -> list[int | None]:
        budgets = {result.budget_bytes for result in self._results}
        finite: list[int | None] = [*sorted(budget for budget in budgets if budget is not None)]
        return finite + [None] * (None in budgets)

    def _losses(self, budget: int | None) -> Plot:
        """A bar a result of this budget, cut by what became of the tokens."""
        results = [result for result in self._results if result.budget_bytes == budget]
        rows = [_wrapped(self._names.series(result)) for result in results]
        causes = [cause for cause in _causes(results) if any(r.losses.get(cause) for r in results)]
        data = [_bar("hit", HIT_COLOUR, rows, [(r.hit_tokens, r) for r in results])]
        data += [
            _bar(
                cause_text(cause),
                CAUSE_COLOURS.get(cause, "#64808e"),
                rows,
                [(r.losses.get(cause, 0), r) for r in results],
            )
            for cause in causes
        ]
        layout = {
            "barmode": "stack",
            "bargap": 0.35,
            "height": 90 + _BAR * len(rows),
            "xaxis": {"tickformat": ".0%", "range": [0, 1], "title": {"text": "share of input tokens"}},
            # Places, not names: two results of one name must not share a bar.
            "yaxis": {
                "tickvals": [*range(len(rows))],
                "ticktext": rows,
                "range": [len(rows) - 0.5, -0.5],
                "showgrid": False,
                "automargin": True,
            },
        }
        return {"name": budget_text(budget), "data": data, "layout": layout}

    # -- the front --------------------------------------------------------------------------------

    def _fronts(self) -> list[Plot]:
        held = [
            ((r.state_bytes_mean + r.kv_bytes_mean) / 1e9, r.hit_rate, r)
            for r in self._results
            if r.state_bytes_mean + r.kv_bytes_mean > 0
        ]
        layout: dict[str, Any] = {"xaxis": bytes_axis([x for x, _, _ in held]), "yaxis": _SHARE}
        views = [self._front("hit rate against bytes", held, layout, higher=True)]
        timed = [
            (self._axis.place(r.budget_bytes), r.ttft.p90, r) for r in self._results if r.ttft is not None
        ]
        if timed:
            layout = {"xaxis": self._axis.axis(), "yaxis": _SECONDS, "shapes": self._axis.shapes()}
            views.append(self._front("TTFT p90 against budget", timed, layout, higher=False))
        return views

    def _front(
        self,
        name: str,
        points: Sequence[tuple[float, float, RunResult]],
        layout: dict[str, Any],
        *,
        higher: bool,
    ) -> Plot:
        best = front([(x, y if higher else -y) for x, y, _ in points])
        corners = sorted((points[i][0], points[i][1]) for i in best)
        data: list[dict[str, Any]] = [
            {
                "type": "scatter",
                "mode": "lines",
                "name": "front",
                "x": [_short(x) for x, _ in corners],
                "y": [_short(y) for _, y in corners],
                "line": {"shape": "hv", "width": 2, "dash": "solid"},
                "hoverinfo": "skip",
                "meta": "front",
            }
        ]
        for series in self._series:
            mine = [i for i, (_, _, r) in enumerate(points) if self._names.series(r) == series]
            if not mine:
                continue
            x, y, text = zip(
                *((points[i][0], points[i][1], self._hover(points[i][2])) for i in mine), strict=True
            )
            trace = self._trace(series, x, y, text, mode="markers")
            trace["marker"] |= {
                "size": [13 if i in best else 8 for i in mine],
                "opacity": [1 if i in best else 0.75 for i in mine],
            }
            data.append(trace)
        return {"name": name, "data": data, "layout": layout}

    # -- both -------------------------------------------------------------------------------------

    def _trace(
        self, series: str, x: Sequence[float], y: Sequence[float], text: Sequence[str], *, mode: str
    ) -> dict[str, Any]:
        look = self._looks[series]
        return {
            "type": "scatter",
            "mode": mode,
            "cliponaxis": False,
            "name": escape(series),
            "x": [_short(value) for value in x],
            "y": [_short(value) for value in y],
            "text": list(text),
            "hovertemplate": "%{text}<extra></extra>",
            "line": {"color": look.colour, "dash": look.dash, "width": 2},
            "marker": {"color": look.colour, "symbol": look.symbol, "size": 8},
        }

    def _hover(self, result: RunResult) -> str:
        lines = [
            f"<b>{escape(policy_text(result))}</b>",
            f"{escape(result.eviction)}, {escape(result.layout)}, match unit {result.match_unit:,}",
            f"budget {budget_text(result.budget_bytes)}",
            f"hit rate {result.hit_rate:.2%}",
            f"{result.snapshots_per_request:.2f} snapshots a request",
            f"states {bytes_text(result.state_bytes_mean)}, KV {bytes_text(result.kv_bytes_mean)}",
        ]
        if result.ttft is not None:
            lines.append(f"TTFT p50 {seconds_text(result.ttft.p50)}, p90 {seconds_text(result.ttft.p90)}")
        return "<br>".join(lines)


def front(points: Sequence[tuple[float, float]]) -> set[int]:
    """Places of the points on the Pareto front of "little x, much y".

    Those are the ones than which no other point has as little x and as much y, equal points apart.
    """
    best: set[int] = set()
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    height = float("-inf")
    last: tuple[float, float] | None = None
    for i in order:
        if points[i][1] > height or points[i] == last:
            best.add(i)
            height, last = points[i][1], points[i]
    return best


_SHARE = {"tickformat": ".0~%", "rangemode": "tozero", "title": {"text": "hit rate"}}
_SECONDS = {"rangemode": "tozero", "ticksuffix": " s", "title": {"text": "seconds"}}


def _causes(results: Sequence[RunResult]) -> list[str]:
    """Known ones first, in their order."""
    seen = dict.fromkeys(cause for result in results for cause in result.losses)
    return [cause for cause in CAUSES if cause in seen] + [cause for cause in seen if cause not in CAUSES]


def _bar(
    name: str, colour: str, rows: Sequence[str], counts: Sequence[tuple[int, RunResult]]
) -> dict[str, Any]:
    shares = [count / max(result.input_tokens, 1) for count, result in counts]
    return {
        "type": "bar",
        "orientation": "h",
        "name": escape(name),
        "x": [_short(share) for share in shares],
        "y": [*range(len(rows))],
        "text": [
            f"{escape(policy_text(result))}<br><b>{escape(name)}</b> {share:.2%}, {count:,} tokens"
            for share, (count, result) in zip(shares, counts, strict=True)
        ],
        "textposition": "none",
        "hovertemplate": "%{text}<extra></extra>",
        "marker": {"color": colour},
    }


def _wrapped(name: str) -> str:
    """A name of at most two short lines, for an axis."""
    first, _, rest = name.partition(" · ")
    lines = [_clipped(first), *([_clipped(rest)] if rest else [])]
    return "<br>".join(map(escape, lines))


def _clipped(text: str) -> str:
    return text if len(text) <= _LABEL_CHARS else f"{text[: _LABEL_CHARS - 1]}…"


def _short(value: float) -> float:
    """Five figures are more than a screen shows."""
    return float(f"{value:.5g}")
