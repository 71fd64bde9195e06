"""Time from measured steps: a sum over what a step does, each with a coefficient that was fitted.

``milepost calibrate`` times real steps of this machine's engine, `fit` finds the coefficients, and the JSON
file that holds them can be named wherever hardware is.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from milepost.error_text import printable
from milepost.errors import ConfigError
from milepost.model_spec import ModelSpec
from milepost.sim.cost.hardware import Hardware
from milepost.sim.cost.nonnegative import nonnegative_least_squares
from milepost.sim.cost.step_work import StepWork

__all__ = [
    "TRUSTED_ERROR",
    "CalibratedCost",
    "Calibration",
    "Coefficients",
    "MeasuredStep",
    "fit",
    "mean_error",
    "model_fingerprint",
    "predict",
    "read_measured",
]

_PREFERENCE = 1e-9
TRUSTED_ERROR = 0.25
"""Above this mean error times can't be trusted; a quiet machine stays well below."""


class Coefficients(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Seconds of a step: `fixed`, and one for each unit of the `StepWork` field of the same name."""

    fixed: float
    tokens: float
    rows: float
    sampled: float
    context: float
    pairs: float
    snapshots: float
    copied_pages: float

    def __post_init__(self) -> None:
        for name, value in msgspec.structs.asdict(self).items():
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"The coefficient {name} must be at least 0 and finite. Given: {value}.")
        if self.fixed + self.tokens + self.rows <= 0:
            raise ConfigError("One of the coefficients fixed, tokens and rows must be above 0. Given: all 0.")


class MeasuredStep(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A step that was timed.

    Attributes:
        what: in words.
        work: what the step did.
        seconds: median of its repeats.
        repeats: how often it ran.
        fitted: whether the coefficients were fitted to it; others only check them.
    """

    what: str
    work: StepWork
    seconds: float
    repeats: int
    fitted: bool = True


class Calibration(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="calibration"
):
    """What ``milepost calibrate`` writes.

    Attributes:
        model: name of the model.
        fingerprint: of its sizes; see `model_fingerprint`.
        machine: what it was measured on.
        engine: the engine's options that matter for time.
        date: of the measurement.
        milepost: version of the engine.
        coefficients: fitted to the points.
        fitted_error: mean of |predicted / measured - 1| over the points that were fitted.
        checked_error: the same over the others; None when there are none.
        points: the steps that were timed.
    """

    model: str
    fingerprint: str
    machine: str
    engine: dict[str, str | int]
    date: str
    milepost: str
    coefficients: Coefficients
    fitted_error: float
    checked_error: float | None
    points: tuple[MeasuredStep, ...]

    @property
    def worst_error(self) -> float:
        """The larger of both errors."""
        return max(self.fitted_error, self.checked_error or 0.0)

    def check_model(self, model: ModelSpec, path: Path) -> None:
        """Make sure that it is of this model.

        Raises:
            ConfigError: it was measured with another one.
        """
        if self.fingerprint != model_fingerprint(model):
            raise ConfigError(
                f"{path} was measured with the model {self.model}, and times of one model say nothing of "
                f"another. Given: a {model.family.value} model of {len(model.layers)} layers, hidden size "
                f"{model.hidden_size}. Run 'milepost calibrate' with that model, or name hardware instead."
            )


class CalibratedCost:
    """Time by measured coefficients; satisfies `milepost.sim.cost.step_work.CostModel`.

    Args:
        calibration: what was measured.
    """

    def __init__(self, calibration: Calibration) -> None:
        self.calibration = calibration
        self._coefficients = calibration.coefficients

    @property
    def name(self) -> str:
        """The machine, that it was measured, and how badly where that is too badly."""
        error = self.calibration.worst_error
        doubt = "" if error <= TRUSTED_ERROR else f", mean error {error:.0%}: not to be trusted"
        return f"{printable(self.calibration.machine)} (measured{doubt})"

    def seconds(self, work: StepWork) -> float:
        """Of one step."""
        return predict(self._coefficients, work)


def predict(one: Coefficients, work: StepWork) -> float:
    """Seconds of a step by its coefficients."""
    return (
        one.fixed
        + one.tokens * work.tokens
        + one.rows * work.rows
        + one.sampled * work.sampled
        + one.context * work.context
        + one.pairs * work.pairs
        + one.snapshots * work.snapshots
        + one.copied_pages * work.copied_pages
    )


def mean_error(coefficients: Coefficients, points: Sequence[MeasuredStep]) -> float | None:
    """Mean of |predicted / measured - 1|; None without points."""
    if not points:
        return None
    return sum(abs(predict(coefficients, point.work) / point.seconds - 1.0) for point in points) / len(points)


def fit(points: Sequence[MeasuredStep]) -> Coefficients:
    """Coefficients of the least squared relative error over the points to be fitted, none below 0.

    Raises:
        ConfigError: there is no such point, or one took no time.
    """
    points = [point for point in points if point.fitted]
    if not points:
        raise ConfigError("A calibration needs at least one measured step. Given: none.")
    seconds = np.array([point.seconds for point in points])
    if not (np.isfinite(seconds).all() and (seconds > 0).all()):
        raise ConfigError("A measured step must take more than 0 seconds. Given: one that doesn't.")
    names = [name for name in Coefficients.__struct_fields__ if name != "fixed"]
    features = np.array([[1.0, *(float(getattr(point.work, name)) for name in names)] for point in points])
    relative = features / seconds[:, None]
    # A tiny weight on each splits features that can't be told apart, rows and sampled rows of decoding.
    lengths = np.linalg.norm(relative, axis=0)
    preference = np.diag(_PREFERENCE * lengths)
    solution = nonnegative_least_squares(
        np.vstack((relative, preference)), np.concatenate((np.ones(len(points)), np.zeros(len(lengths))))
    )
    return Coefficients(fixed=float(solution[0]), **dict(zip(names, solution[1:].tolist(), strict=True)))


def model_fingerprint(model: ModelSpec) -> str:
    """A short hash of all sizes of a model; token ids and names, which may differ by copy, don't count."""
    sizes = msgspec.structs.replace(
        model, bos_token_id=0, pad_token_id=0, stop_token_ids=(), weight_prefix="", max_position=0
    )
    return hashlib.sha256(msgspec.json.encode(sizes, order="sorted")).hexdigest()[:16]


def read_measured(content: bytes, path: Path) -> Calibration | Hardware:
    """A JSON file that is named as hardware: a description of it, or a calibration.

    Raises:
        ConfigError: it is neither.
    """
    try:
        return msgspec.json.decode(content, type=Calibration | Hardware)
    except ConfigError as error:  # a figure that can't be
        raise ConfigError(f"{path}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"{path} is neither a description of hardware nor a calibration: {error}. "
            'Its \'kind\' must be "hardware" or "calibration".'
        ) from None
