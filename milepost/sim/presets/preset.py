"""What a preset is: a model of another engine's cache, put together from parts that the scheduler runs."""

from __future__ import annotations

import math
from typing import Protocol

import msgspec
import numpy as np

from milepost.errors import ConfigError
from milepost.model_spec import ModelSpec
from milepost.sim.replay.setup import MATCH_UNIT, Parts
from milepost.sim.runs import RunSpec
from milepost.sim.traces.trace import Trace

__all__ = ["Preset", "Sizes", "number_of", "number_text", "sizes_of"]

_OPTION = "preset"


class Preset(Protocol):
    """A model of another engine."""

    @property
    def name(self) -> str:
        """As it is written on the command line, with the parameters that aren't the defaults."""
        ...

    @property
    def source(self) -> str:
        """Where its rules are from: repository, file or section, date."""
        ...

    @property
    def simplifications(self) -> tuple[str, ...]:
        """What the model leaves out, a sentence each."""
        ...

    def parts(self, spec: RunSpec, trace: Trace, model: ModelSpec) -> Parts:
        """What a run of `spec` drives.

        Raises:
            ConfigError: sizes that can't be laid out, or a budget that is too small.
        """
        ...


class Sizes(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that a preset counts with.

    Attributes:
        match_unit: between prefix keys.
        block_size: of a KV block.
    """

    match_unit: int
    block_size: int


def sizes_of(spec: RunSpec, trace: Trace) -> Sizes:
    """The sizes that are asked for, else those of the trace."""
    whole = trace.block_or(0)
    return Sizes(
        match_unit=max(spec.match_unit, whole) or MATCH_UNIT,
        block_size=spec.block_size or whole or spec.match_unit or MATCH_UNIT,
    )


def number_of(preset: str, key: str, text: str, low: float, high: float) -> float:
    """A parameter's value.

    Raises:
        ConfigError: it is no number, or out of range.
    """
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not low <= number <= high:  # also refuses NaN
        raise ConfigError(
            f"{_OPTION}: {preset}'s {key} must be a number between {low:g} and {high:g}. "
            f"Given: {text!r:.100}."
        )
    return number


def number_text(number: float) -> str:
    """A parameter's value as it can be read again: no exponent, and no digit less than it has."""
    return np.format_float_positional(number, trim="-")
