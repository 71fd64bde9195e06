"""Engines by the names in a run's spec: our own, models of others, and the one that knows the future.

The last two are looked up when they are asked for: a version without them says so and does the rest.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

from milepost.errors import ConfigError
from milepost.model_spec import ModelSpec
from milepost.sim.runs import RunSpec
from milepost.sim.setup import Parts, parts_of
from milepost.sim.traces.trace import Trace

__all__ = ["CLAIRVOYANT", "explained_presets", "full_preset_name", "has_presets", "parts_by_name"]

CLAIRVOYANT = "clairvoyant"


def parts_by_name(spec: RunSpec, trace: Trace, model: ModelSpec) -> Parts:
    """What a run of `spec` drives.

    Raises:
        ConfigError: an unknown name, or sizes that can't be laid out.
    """
    if spec.preset:
        return cast("Parts", _presets().find_preset(spec.preset).parts(spec, trace, model))
    if CLAIRVOYANT in {spec.policy, spec.eviction}:
        clairvoyant = _module("milepost.sim.clairvoyant", "clairvoyant policy or eviction")
        return cast("Parts", clairvoyant.clairvoyant_parts(spec, trace, model))
    return parts_of(spec, trace, model)


def full_preset_name(text: str) -> str:
    """The full name of the preset `text`.

    Raises:
        ConfigError: it names none, or has a parameter that is none; with the nearest match.
    """
    return str(_presets().find_preset(text).name)


def explained_presets() -> str:
    """Every preset: what it models, from which source, and what it leaves out.

    Raises:
        ConfigError: there are none.
    """
    presets = _presets()
    return "\n\n".join(map(presets.explain_preset, presets.PRESETS))


def has_presets() -> bool:
    """Whether there are any."""
    try:
        _presets()
    except ConfigError:
        return False
    return True


def _presets() -> Any:  # noqa: ANN401 - a module
    return _module("milepost.sim.presets.names", "presets")


def _module(name: str, what: str) -> Any:  # noqa: ANN401 - a module
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if not name.startswith(error.name or " "):
            raise  # something that it needs itself
        raise ConfigError(f"There is no {what} in this version of Milepost. Leave it out.") from None
