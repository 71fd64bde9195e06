"""The roofline beside published times: the errors that docs/cost-model.md states, and the fit itself."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from milepost.sim.cost.fitting import FACTORS, fit_factors, with_factors
from milepost.sim.cost.hardware import Efficiency, find_hardware
from milepost.sim.cost.reference import (
    Reference,
    cost_of_row,
    mean_error,
    predicted_seconds,
    read_references,
    work_of_row,
)

DOCS = Path(__file__).parents[3] / "docs" / "cost-model.md"
K3 = read_references()


def test_mean_errors_are_those_that_are_stated() -> None:
    text = " ".join(DOCS.read_text(encoding="utf-8").split())
    for role, words in (("check", "checked rows"), ("fit", "fitted rows")):
        stated = re.search(rf"mean error of the {words} is ([\d.]+) %", text)
        assert stated is not None
        assert 100 * mean_error(K3, role) == pytest.approx(float(stated[1]), abs=0.05)
    assert mean_error(K3, "check") < 0.15


def test_every_row_is_in_the_table() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for row in K3.rows:
        assert table_row(row) in text


def table_row(row: Reference) -> str:
    predicted = predicted_seconds(row)
    times = f"{1e3 * predicted:,.1f} | {1e3 * row.seconds:,.1f} | {predicted / row.seconds:.2f}"
    return f"| {row.hardware} | {row.division} | {row.step} | {row.source} | {times} | {row.role} |"


def test_factors_are_what_the_fit_comes_to() -> None:
    """Two digits of each, so that neither the rows nor the model can change without a new fit."""
    fitted = fit_factors(K3)
    assert tuple(fitted) == FACTORS
    shares = Efficiency()
    for name in ("experts", "cache", "network"):
        assert getattr(shares, name) == pytest.approx(fitted[name], rel=0.02)
    for name in ("gb300", "gb200", "b200", "b300", "h100", "h200"):
        assert find_hardware(name).efficiency == shares
        assert find_hardware(name).kernel_seconds == pytest.approx(fitted["kernel_seconds"], rel=0.02)


def test_the_fit_finds_factors_that_made_the_rows() -> None:
    truth = {"experts": 0.4, "cache": 0.6, "network": 0.55, "kernel_seconds": 1.7e-6}
    rows = [msgspec.structs.replace(row, parts={}) for row in K3.rows if row.role == "fit"]
    hardware = with_factors(find_hardware("gb300"), truth)
    made = tuple(
        msgspec.structs.replace(row, seconds=predicted_seconds(row, hardware=hardware)) for row in rows
    )
    found = fit_factors(msgspec.structs.replace(K3, rows=made))
    assert found == pytest.approx(truth, rel=1e-2)


def test_checked_rows_are_never_fitted() -> None:
    """The factors come out equal without them, and no step is in both roles."""
    fitted = tuple(row for row in K3.rows if row.role == "fit")
    assert fit_factors(msgspec.structs.replace(K3, rows=fitted)) == fit_factors(K3)
    steps = [(row.source, row.hardware, row.division, row.step) for row in K3.rows]
    assert len(set(steps)) == len(steps)
    assert {row.source for row in K3.rows} == set(K3.sources)


def test_parts_of_fitted_rows_are_parts_of_the_breakdown() -> None:
    for row in K3.rows:
        assert not row.parts or row.role == "fit"
        known = {part.name for part in cost_of_row(row, K3.model).breakdown(work_of_row(row))}
        assert set(row.parts) <= known
        assert sum(row.parts.values()) < row.seconds


@pytest.mark.parametrize(
    ("asked", "tokens", "rows", "context", "pairs"),
    [
        ({"phase": "decode", "batch": 8, "context": 100}, 8, 8, 808, 808),
        ({"phase": "prefill", "batch": 1, "context": 10, "cached": 7}, 3, 1, 10, 8 + 9 + 10),
        ({"phase": "prefill", "batch": 2, "context": 3}, 6, 2, 6, 2 * (1 + 2 + 3)),
    ],
)
def test_work_of_a_row(asked: dict[str, str | int], tokens: int, rows: int, context: int, pairs: int) -> None:
    row = msgspec.convert(
        {
            "source": "a test",
            "hardware": "gb300",
            "tensor_parallel": 1,
            "data_parallel": 1,
            "seconds": 1.0,
            "role": "check",
            **asked,
        },
        Reference,
    )
    work = work_of_row(row)
    assert (work.tokens, work.rows, work.context, work.pairs) == (tokens, rows, context, pairs)
    assert work.sampled == rows
