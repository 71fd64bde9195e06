"""Axes of bytes, for plotly: of budgets, with a column for "unlimited" at the right, and of bytes held.

Every label is given; the page leaves out those for which it has no room.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from milepost.sim.reports.labels import budget_text, bytes_text
from milepost.sim.runs import RunResult

__all__ = ["BudgetAxis", "bytes_axis"]

_LEAST_STEP = 0.3  # decades from the last budget to the unlimited column


class BudgetAxis:
    """Where budgets stand on the axis of one workload's plots."""

    def __init__(self, results: Sequence[RunResult]) -> None:
        self._budgets = sorted({r.budget_bytes for r in results if r.budget_bytes is not None})
        self._has_unlimited = any(result.budget_bytes is None for result in results)
        logs = [math.log10(budget / 1e9) for budget in self._budgets]
        step = max(_LEAST_STEP, 0.18 * (logs[-1] - logs[0])) if logs else _LEAST_STEP
        self._unlimited = logs[-1] + step if logs else 0.0
        ends = logs + [self._unlimited] * self._has_unlimited
        margin = max(0.12, 0.06 * (ends[-1] - ends[0]))
        self._range = (ends[0] - margin, ends[-1] + max(margin, step / 2 * self._has_unlimited))
        self._edge = self._unlimited - step / 2

    def place(self, budget: int | None) -> float:
        """Of a budget, in GB."""
        return float(10.0**self._unlimited) if budget is None else budget / 1e9

    def axis(self) -> dict[str, Any]:
        """The axis, for plotly."""
        ticks: list[int | None] = [*self._budgets, *([None] if self._has_unlimited else [])]
        return {
            "type": "log",
            "range": list(self._range),
            "tickvals": [self.place(budget) for budget in ticks],
            "ticktext": [budget_text(budget) for budget in ticks],
            "tickangle": 0,
            "minor": {"ticks": ""},
            "title": {"text": "budget of states and KV together"},
        }

    def shapes(self) -> list[dict[str, Any]]:
        """A shade behind the unlimited column, where there are others; the page gives it its colour."""
        if not (self._has_unlimited and self._budgets):
            return []
        return [
            {
                "type": "rect",
                "layer": "below",
                "xref": "x",
                "yref": "paper",
                "x0": 10**self._edge,
                "x1": 10 ** self._range[1],
                "y0": 0,
                "y1": 1,
                "line": {"width": 0},
                "name": "shade",
            }
        ]


def bytes_axis(places: Sequence[float]) -> dict[str, Any]:
    """A logarithmic axis for positive numbers of GB, with a label at 1, 2 and 5 of each power."""
    logs = [math.log10(place) for place in places] or [0.0]
    low, high = min(logs) - 0.12, max(logs) + 0.12
    powers = range(math.floor(low), math.ceil(high) + 1)
    ticks = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    shown = [tick for tick in ticks if low <= math.log10(tick) <= high]
    return {
        "type": "log",
        "range": [low, high],
        "tickvals": shown,
        "ticktext": [bytes_text(tick * 1e9) for tick in shown],
        "tickangle": 0,
        "title": {"text": "cached bytes, mean over time"},
    }
