"""What a benchmark reports."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

__all__ = ["Result", "format_table", "write_json"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """One quantity, measured several times.

    Attributes:
        benchmark: the benchmark's name.
        subject: what was measured, such as a model.
        quantity: what the numbers are.
        unit: their unit.
        samples: all of them, in order.
        settings: what else must be the same in a comparison.
    """

    benchmark: str
    subject: str
    quantity: str
    unit: str
    samples: Sequence[float]
    settings: dict[str, object] = field(default_factory=dict)

    @property
    def median(self) -> float:
        """The number to quote."""
        return statistics.median(self.samples)


def write_json(path: Path, machine: dict[str, object], results: Sequence[Result]) -> None:
    """Write a whole run, all or nothing."""
    rows = [asdict(result) | {"median": result.median} for result in results]
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.tmp")
    text = json.dumps({"machine": machine, "results": rows}, indent=1)
    unfinished.write_text(text + "\n", encoding="utf-8")
    unfinished.replace(path)


def format_table(results: Sequence[Result]) -> str:
    """A table for people: median, lowest and highest sample."""
    head = ["benchmark", "subject", "quantity", "median", "lowest", "highest", "unit"]
    rows = [head]
    for result in results:
        numbers = [_short(x) for x in (result.median, min(result.samples), max(result.samples))]
        rows.append([result.benchmark, result.subject, result.quantity, *numbers, result.unit])
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
