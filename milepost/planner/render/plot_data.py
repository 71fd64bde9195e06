"""A plan's plots as plotly's plain data; the page adds its theme.

Names may be anything: what plotly would read as markup is escaped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

from milepost.planner.report import Plot, Series
from milepost.planner.worksheet import number_text
from milepost.sim.reports.looks import COLOURS, DASHES, SYMBOLS

__all__ = ["plot_data"]

_ROW = 34
_LABEL_CHARS = 24
_SHORT_FROM = 10_000
_FINE_DECADES = 2.5
_MOST_TICKS = 16
_SECOND_TURN = 0.5
"""Opacity of bars that take a colour again."""


def plot_data(plot: Plot) -> dict[str, Any]:
    """``{"views": [{"name", "data", "layout"}]}``, or ``{"empty": why}`` where there is nothing to draw."""
    shown = [(series, look) for look, series in enumerate(plot.series) if _has_points(series)]
    if not shown:
        return {"empty": "There is nothing to draw."}
    x = [value for series, _ in shown for value in series.x]
    y = [value for series, _ in shown for value in series.y]
    if plot.kind == "bars":
        return {"views": [_bars(plot, shown, list(dict.fromkeys(x)))]}
    layout = {
        "xaxis": _axis(plot.x_name, x, log=plot.log_x, own_ticks=True),
        "yaxis": _axis(plot.y_name, y, log=plot.log_y),
    }
    data = [_line(plot, series, look) for series, look in shown]
    return {"views": [{"name": plot.title, "data": data, "layout": layout}]}


def _has_points(series: Series) -> bool:
    return any(math.isfinite(value) for value in series.y)


def _line(plot: Plot, series: Series, look: int) -> dict[str, Any]:
    turn, colour = divmod(look, len(COLOURS))
    marker = {"color": COLOURS[colour], "symbol": SYMBOLS[turn % len(SYMBOLS)], "size": 7}
    return {
        "type": "scatter",
        "mode": "markers" if plot.kind == "points" else "lines+markers",
        "cliponaxis": False,
        "name": escape(series.name),
        "x": [_place(value) for value in series.x],
        "y": [_place(value) for value in series.y],
        "text": _hovers(plot, series),
        "hovertemplate": "%{text}<extra></extra>",
        "line": {"color": COLOURS[colour], "dash": DASHES[turn % len(DASHES)], "width": 2},
        "marker": marker,
    }


def _bars(plot: Plot, shown: Sequence[tuple[Series, int]], rows: list[float | str]) -> dict[str, Any]:
    """Bars that lie, a row for each x: names have room beside them, on a phone too."""
    places = {row: place for place, row in enumerate(rows)}
    data = [
        {
            "type": "bar",
            "orientation": "h",
            "name": escape(series.name),
            "x": [_place(value) for value in series.y],
            "y": [places[row] for row in series.x],
            "text": _hovers(plot, series),
            "textposition": "none",
            "hovertemplate": "%{text}<extra></extra>",
            "marker": {
                "color": COLOURS[look % len(COLOURS)],
                "opacity": 1 if look < len(COLOURS) else _SECOND_TURN,
            },
        }
        for series, look in shown
    ]
    layout = {
        "barmode": "stack",
        "bargap": 0.35,
        "height": 90 + _ROW * len(rows),
        "xaxis": _axis(plot.y_name, [value for series, _ in shown for value in series.y], log=plot.log_y),
        # Places, not names: plotly would take a name such as "8" for a number.
        "yaxis": {
            "title": {"text": escape(plot.x_name), "standoff": 14},
            "tickvals": [*range(len(rows))],
            "ticktext": [escape(_clipped(_text(row))) for row in rows],
            "range": [len(rows) - 0.5, -0.5],
            "showgrid": False,
            "automargin": True,
        },
    }
    return {"name": plot.title, "data": data, "layout": layout}


def _axis(name: str, values: Sequence[float | str], *, log: bool, own_ticks: bool = False) -> dict[str, Any]:
    axis: dict[str, Any] = {"title": {"text": escape(name)}}
    numbers = [value for value in values if not isinstance(value, str) and math.isfinite(value)]
    if len(numbers) < len([value for value in values if isinstance(value, str)]):
        return axis | {"type": "category"}
    positive = [value for value in numbers if value > 0]
    axis["tickformat"] = "~s" if max(numbers, default=0) >= _SHORT_FROM else "~g"
    if log and positive:
        return axis | _log_axis(sorted(set(positive)), own_ticks=own_ticks)
    return axis | {"rangemode": "tozero" if positive == numbers else "normal"}


def _log_axis(values: Sequence[float], *, own_ticks: bool) -> dict[str, Any]:
    """With decades as ticks, or with the values if they are few, as contexts in powers of two are."""
    low, high = math.log10(values[0]), math.log10(values[-1])
    if own_ticks and 1 < len(values) <= _MOST_TICKS:
        pad = 0.04 * (high - low)
        base = 1024 if all(value % 1024 == 0 for value in values) else 1000
        ticks = {"tickvals": [*values], "ticktext": [_tick(value, base) for value in values]}
        return {"type": "log", "range": [low - pad, high + pad], **ticks}
    return {"type": "log", "dtick": "D2" if high - low < _FINE_DECADES else 1}


def _tick(value: float, base: int) -> str:
    """131,072 is "128k" among multiples of 1,024, as contexts are named, and "131k" among others."""
    for power, letter in ((4, "T"), (3, "G"), (2, "M"), (1, "k")):
        if value >= base**power and (base == 1024 or value >= _SHORT_FROM):
            return f"{value / base**power:.3g}{letter}"
    return f"{value:,.4g}" if value < 1 else f"{value:,.6g}"


def _hovers(plot: Plot, series: Series) -> list[str]:
    lines = []
    for place, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        own = f"<br>{escape(series.labels[place])}" if series.labels else ""
        lines.append(
            f"<b>{escape(series.name)}</b>{own}<br>{escape(plot.x_name)}: {escape(_text(x))}"
            f"<br>{escape(plot.y_name)}: {_text(y)}"
        )
    return lines


def _text(value: float | str) -> str:
    if isinstance(value, str):
        return value
    return number_text(value) if math.isfinite(value) else str(value)


def _clipped(text: str) -> str:
    return text if len(text) <= _LABEL_CHARS else f"{text[: _LABEL_CHARS - 1]}…"


def _place(value: float | str) -> float | str | None:
    """Six figures are more than a screen shows; what is no finite number is a gap."""
    if isinstance(value, str):
        return escape(value)
    return float(f"{value:.6g}") if math.isfinite(value) else None
