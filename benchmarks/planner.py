"""The roofline beside published times of Kimi K3: predicted, published, ratio; and the factors, fitted anew.

The rows and their sources lie in ``milepost/assets/references``; ``benchmarks/aiconfigurator_rows.py`` asks
aiconfigurator for its rows again.
"""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.results import Result
from milepost.sim.cost.fitting import FACTORS, fit_factors
from milepost.sim.cost.hardware import find_hardware
from milepost.sim.cost.reference import Reference, mean_error, predicted_seconds, read_references

__all__ = ["planner", "table"]

NAME = "planner"
HEAD = (
    "| hardware | division | step | source | predicted ms | published ms | ratio | role |\n"
    "|---|---|---|---|---|---|---|---|"
)


def planner() -> Iterator[Result]:
    """Times of the roofline beside published ones; efficiency factors fitted to some of them."""
    references = read_references()
    for row in references.rows:
        ratio = predicted_seconds(row, references.model) / row.seconds
        where = f"{row.hardware}, {row.division}, {row.source} ({row.role})"
        yield Result(
            benchmark=NAME,
            subject=where,
            quantity=row.step,
            unit="predicted/published",
            samples=[ratio],
            settings={"published_seconds": row.seconds, "note": row.note},
        )
    for role in ("fit", "check"):
        error = 100.0 * mean_error(references, role)
        count = sum(row.role == role for row in references.rows)
        yield Result(
            benchmark=NAME, subject=f"{count} {role} rows", quantity="mean error", unit="%", samples=[error]
        )
    fitted = fit_factors(references)
    hardware = find_hardware("gb300")
    for name in FACTORS:
        owner = hardware if name == "kernel_seconds" else hardware.efficiency
        yield Result(
            benchmark=NAME,
            subject=f"factor, {float(getattr(owner, name)):.3g} in use",
            quantity=name,
            unit="s" if name == "kernel_seconds" else "",
            samples=[fitted[name]],
        )


def table() -> str:
    """All rows as docs/cost-model.md has them."""
    references = read_references()
    return "\n".join([HEAD, *(_line(row, references.model) for row in references.rows)])


def _line(row: Reference, model: str) -> str:
    predicted = predicted_seconds(row, model)
    times = f"{1e3 * predicted:,.1f} | {1e3 * row.seconds:,.1f} | {predicted / row.seconds:.2f}"
    return f"| {row.hardware} | {row.division} | {row.step} | {row.source} | {times} | {row.role} |"


if __name__ == "__main__":
    print(table())
