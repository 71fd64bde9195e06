"""Models of other engines' caches, run by our scheduler: docs/presets.md names sources and limits."""

from milepost.sim.presets.names import PRESETS, explain_preset, find_preset
from milepost.sim.presets.preset import Preset

__all__ = ["PRESETS", "Preset", "explain_preset", "find_preset"]
