"""Engines by the names in a run's spec: our own, models of others, and the one that knows the future."""

from __future__ import annotations

from milepost.model_spec import ModelSpec
from milepost.sim.clairvoyant.oracle import CLAIRVOYANT, clairvoyant_parts
from milepost.sim.presets.names import find_preset
from milepost.sim.replay.setup import Parts, parts_of
from milepost.sim.runs import RunSpec
from milepost.sim.traces.trace import Trace

__all__ = ["full_preset_name", "parts_by_name"]


def parts_by_name(spec: RunSpec, trace: Trace, model: ModelSpec) -> Parts:
    """What a run of `spec` drives.

    Raises:
        ConfigError: an unknown name, or sizes that can't be laid out.
    """
    preset = find_preset(spec.preset)
    if preset is not None:
        return preset.parts(spec, trace, model)
    if CLAIRVOYANT in {spec.policy, spec.eviction}:
        return clairvoyant_parts(spec, trace, model)
    return parts_of(spec, trace, model)


def full_preset_name(text: str) -> str:
    """The full name of the preset `text`.

    Raises:
        ConfigError: it names none, or has a parameter that is none; with the nearest match.
    """
    preset = find_preset(text)
    assert preset is not None  # only for ""
    return preset.name
