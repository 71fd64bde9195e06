"""Efficiency factors fitted to the times that others published; see `fit_factors`.

    python -m benchmarks planner

prints the fit beside the factors that the hardware files hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from milepost.sim.cost.hardware import Hardware, find_hardware
from milepost.sim.cost.reference import Reference, References, cost_of_row, work_of_row

__all__ = ["FACTORS", "fit_factors", "with_factors"]

FACTORS = ("experts", "cache", "network", "kernel_seconds")
"""What is fitted: shares of `Efficiency`, and the time of a kernel that has nothing to do."""

_SHARES = np.array([name != "kernel_seconds" for name in FACTORS])
_STEP = 1e-4
_ROUNDS = 60


def with_factors(hardware: Hardware, factors: Mapping[str, float]) -> Hardware:
    """The same hardware with other factors, of `FACTORS`."""
    shares = {name: value for name, value in factors.items() if name != "kernel_seconds"}
    efficiency = msgspec.structs.replace(hardware.efficiency, **shares)
    kernel = factors.get("kernel_seconds", hardware.kernel_seconds)
    return msgspec.structs.replace(hardware, efficiency=efficiency, kernel_seconds=kernel)


def fit_factors(references: References) -> dict[str, float]:
    """Factors of the least squared log ratio of predicted and published time, over the *fit* rows.

    Parts that a row tells count beside the whole, so that experts, links and attention can be told apart.
    Each kind (decode and prefill of a tool, parts of either, measured) weighs as much as each other, however
    many rows it has. Levenberg-Marquardt in the logarithms of the factors, from those that the hardware has;
    shares stay at 1 at most.
    """
    rows = [row for row in references.rows if row.role == "fit"]
    weights = _weights(rows)
    start = find_hardware(rows[0].hardware)
    logs = np.log([_factor(start, name) for name in FACTORS])
    damping = 1e-3
    here = _log_ratios(references.model, rows, logs) * weights
    for _ in range(_ROUNDS):
        slopes = _slopes(references.model, rows, logs, here, weights)
        normal = slopes.T @ slopes
        change = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -slopes.T @ here)
        tried = np.where(_SHARES, np.minimum(logs + change, 0.0), logs + change)
        there = _log_ratios(references.model, rows, tried) * weights
        if there @ there >= here @ here:
            damping *= 10.0
            continue
        settled = np.abs(tried - logs).max() < _STEP
        logs, here, damping = tried, there, damping / 3.0
        if settled:
            break
    return dict(zip(FACTORS, np.exp(logs).tolist(), strict=True))


def _slopes(
    model: str,
    rows: Sequence[Reference],
    logs: NDArray[np.float64],
    here: NDArray[np.float64],
    weights: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Of each row's weighted log ratio [rows, factors], one factor after the other moved a little down."""
    moved = logs - _STEP * np.eye(len(logs))
    there = np.array([_log_ratios(model, rows, one) * weights for one in moved])
    slopes: NDArray[np.float64] = (here - there).T / _STEP
    return slopes


def _factor(hardware: Hardware, name: str) -> float:
    owner = hardware if name == "kernel_seconds" else hardware.efficiency
    return float(getattr(owner, name))


def _weights(rows: Sequence[Reference]) -> NDArray[np.float64]:
    kinds = [kind for row in rows for kind in (_kind(row), *(("parts", row.phase) for _ in row.parts))]
    return np.array([1.0 / kinds.count(kind) for kind in kinds]) ** 0.5


def _kind(row: Reference) -> tuple[str, str]:
    return "tool" if row.source.startswith("aiconfigurator") else "measured", row.phase


def _log_ratios(model: str, rows: Sequence[Reference], logs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Of each row, and behind it of each of its parts."""
    factors = dict(zip(FACTORS, np.exp(logs).tolist(), strict=True))
    ratios: list[float] = []
    for row in rows:
        cost = cost_of_row(row, model, with_factors(find_hardware(row.hardware), factors))
        parts = {part.name: part.seconds for part in cost.breakdown(work_of_row(row))}
        ratios.append(sum(parts.values()) / row.seconds)
        ratios.extend(parts[name] / seconds for name, seconds in row.parts.items())
    return np.log(ratios)
