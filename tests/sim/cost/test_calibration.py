"""Fitted times: the solver against the conditions of an optimum, and coefficients that come back."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.errors import ConfigError
from milepost.sim.cost.by_name import find_cost_model
from milepost.sim.cost.calibration import (
    CalibratedCost,
    Calibration,
    Coefficients,
    MeasuredStep,
    fit,
    mean_error,
    model_fingerprint,
    predict,
)
from milepost.sim.cost.nonnegative import nonnegative_least_squares
from milepost.sim.cost.step_work import StepWork
from milepost.sim.models import MODELS, find_model

TRUE = Coefficients(
    fixed=4e-3,
    tokens=2e-4,
    rows=1e-4,
    sampled=3e-5,
    context=1e-7,
    pairs=5e-8,
    snapshots=4e-4,
    copied_pages=1e-5,
)


def works(number: int) -> list[StepWork]:
    random = np.random.default_rng(3)
    tops = (2000, 64, 64, 100_000, 1_000_000, 16, 64)
    names = ("tokens", "rows", "sampled", "context", "pairs", "snapshots", "copied_pages")
    return [
        StepWork(**{name: int(random.integers(1, top)) for name, top in zip(names, tops, strict=True)})
        for _ in range(number)
    ]


def points(coefficients: Coefficients, noise: float = 0.0) -> list[MeasuredStep]:
    random = np.random.default_rng(5)
    return [
        MeasuredStep(
            what="made up",
            work=work,
            seconds=predict(coefficients, work) * (1 + noise * float(random.standard_normal())),
            repeats=1,
        )
        for work in works(40)
    ]


# -- the solver -------------------------------------------------------------------------------------


@given(
    seed=st.integers(0, 10_000),
    shape=st.tuples(st.integers(1, 12), st.integers(1, 6)),
    scale=st.sampled_from([1e-9, 1.0, 1e9]),
)
def test_the_solver_meets_the_conditions_of_an_optimum(
    seed: int, shape: tuple[int, int], scale: float
) -> None:
    """Karush-Kuhn-Tucker: no negative entry, no descent at zero, no slope where it is free."""
    random = np.random.default_rng(seed)
    matrix = random.standard_normal(shape) * scale
    target = random.standard_normal(shape[0])
    found = nonnegative_least_squares(matrix, target)
    assert (found >= 0).all()
    slope = matrix.T @ (matrix @ found - target) / np.linalg.norm(matrix, axis=0)
    assert (slope >= -1e-7).all()
    assert np.abs(slope[found > 0]).max(initial=0) < 1e-7


def test_the_solver_by_hand() -> None:
    # Without the sign the second would be -1: at zero the first alone is the mean.
    matrix = np.array([[1.0, 0.0], [1.0, 1.0]])
    assert nonnegative_least_squares(matrix, np.array([2.0, 1.0])) == pytest.approx([1.5, 0.0])
    assert nonnegative_least_squares(np.zeros((2, 2)), np.array([2.0, 1.0])) == pytest.approx([0.0, 0.0])


# -- the fit ----------------------------------------------------------------------------------------


def test_known_coefficients_come_back() -> None:
    found = msgspec.structs.asdict(fit(points(TRUE)))
    assert found == pytest.approx(msgspec.structs.asdict(TRUE), rel=1e-4)


def test_noise_and_absent_costs() -> None:
    absent = msgspec.structs.replace(TRUE, rows=0.0, sampled=0.0)
    measured = points(absent, noise=0.03)
    found = fit(measured)
    error = mean_error(found, measured)
    assert error is not None
    assert error < 0.04
    assert min(msgspec.structs.asdict(found).values()) >= 0


def test_points_for_checking_are_not_fitted() -> None:
    wrong = [msgspec.structs.replace(point, seconds=1e3, fitted=False) for point in points(TRUE)]
    assert fit([*wrong, *points(TRUE)]).tokens == pytest.approx(TRUE.tokens, rel=1e-4)
    with pytest.raises(ConfigError, match="at least one measured step"):
        fit(wrong)
    with pytest.raises(ConfigError, match="more than 0 seconds"):
        fit([msgspec.structs.replace(wrong[0], seconds=0.0, fitted=True)])


@pytest.mark.parametrize(
    "wrong", [{"pairs": -1e-9}, {"context": float("nan")}, {"fixed": 0, "tokens": 0, "rows": 0}]
)
def test_coefficients_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        Coefficients(**(msgspec.structs.asdict(TRUE) | wrong))


# -- the file ---------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    calibration = Calibration(
        model="milepost-toy-k3",
        fingerprint=model_fingerprint(find_model("milepost-toy-k3")[1]),
        machine="a desk",
        engine={"dtype": "float32"},
        date="2026-11-30T00:00:00+00:00",
        milepost="0.1",
        coefficients=TRUE,
        fitted_error=0.0,
        checked_error=None,
        points=tuple(points(TRUE)),
    )
    path = tmp_path / "desk.json"
    path.write_bytes(msgspec.json.encode(calibration))
    return path


def test_a_calibration_is_hardware(file: Path) -> None:
    cost = find_cost_model(str(file), find_model("milepost-toy-k3")[1])
    assert isinstance(cost, CalibratedCost)
    assert cost.name == "a desk (measured)"
    busy = msgspec.structs.replace(cost.calibration, fitted_error=0.1, checked_error=0.78)
    assert CalibratedCost(busy).name == "a desk (measured, mean error 78%: not to be trusted)"
    work = works(1)[0]
    assert cost.seconds(work) == predict(TRUE, work)


def test_a_calibration_of_another_model(file: Path) -> None:
    with pytest.raises(ConfigError, match=r"measured with the model milepost-toy-k3.*93 layers"):
        find_cost_model(str(file), find_model("kimi-k3")[1])
    with pytest.raises(ConfigError, match=r"on one device, so tensor_parallel must be 1\. Given: 2"):
        find_cost_model(str(file), find_model("milepost-toy-k3")[1], tensor_parallel=2)


def test_the_same_model_elsewhere_has_the_same_fingerprint(tmp_path: Path) -> None:
    """A folder says in generation_config.json which tokens end a reply, a lone config.json does not."""
    shutil.copy(MODELS["milepost-toy-k3"] / "config.json", tmp_path / "lone.json")
    here, there = find_model("milepost-toy-k3")[1], find_model(str(tmp_path / "lone.json"))[1]
    assert here != there
    assert model_fingerprint(here) == model_fingerprint(there)
    assert model_fingerprint(here) != model_fingerprint(msgspec.structs.replace(here, hidden_size=64))


def test_a_spoilt_calibration(file: Path) -> None:
    content = msgspec.json.decode(file.read_bytes())
    content["coefficients"]["pairs"] = -1.0
    file.write_bytes(msgspec.json.encode(content))
    with pytest.raises(ConfigError, match=r"desk\.json: The coefficient pairs must be at least 0"):
        find_cost_model(str(file), find_model("milepost-toy-k3")[1])
