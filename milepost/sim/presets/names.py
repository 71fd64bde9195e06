"""Presets by name: ``vllm``, ``vllm(retention=8192)``, ``marconi(alpha=1)``."""

from __future__ import annotations

from collections.abc import Callable

from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.prefix.terms import parse_terms
from milepost.sim.presets.marconi import MarconiPreset
from milepost.sim.presets.preset import Preset, number_of
from milepost.sim.presets.sglang import Sglang
from milepost.sim.presets.stateless import Stateless, Unlimited
from milepost.sim.presets.vllm import Vllm

__all__ = ["PRESETS", "explain_preset", "find_preset"]

_OPTION = "preset"
_MOST_TOKENS = 1 << 40

# A preset's parameters: name, least and greatest value.
_RANGES: dict[str, dict[str, tuple[float, float]]] = {
    "vllm": {"retention": (0, _MOST_TOKENS), "alignment": (1, 1 << 20)},
    "sglang": {"ratio": (1e-3, 1e3), "chunk": (0, _MOST_TOKENS)},
    "marconi": {"alpha": (0, 1e6)},
    "stateless": {"tails": (0, 1)},
    "unlimited": {},
}
_WHOLE = ("retention", "alignment", "chunk", "tails")

PRESETS = tuple(_RANGES)
"""Every preset there is."""


def find_preset(name: str) -> Preset | None:
    """The preset that `name` names, with its parameters; None for "".

    Raises:
        ConfigError: an unknown name or parameter (with the nearest match), or a value out of range.
    """
    if not name:
        return None
    terms = parse_terms(_OPTION, name)
    if len(terms) > 1:
        raise ConfigError(f"{_OPTION} takes one name. Given: {name!r:.100}.")
    (term,) = terms
    if term.name not in _RANGES:
        raise ConfigError(one_of(_OPTION, term.name, PRESETS))
    ranges = _RANGES[term.name]
    given = {key: number_of(term.name, key, text, *ranges[key]) for key, text in term.bind([*ranges]).items()}
    for key in _WHOLE:
        if key in given and given[key] != int(given[key]):
            raise ConfigError(
                f"{_OPTION}: {term.name}'s {key} must be a whole number. Given: {given[key]:g}."
            )
    return _BUILDERS[term.name](given)


def explain_preset(name: str) -> str:
    """What a preset is a model of and what it leaves out, in lines to be printed.

    Raises:
        ConfigError: an unknown name, or none.
    """
    preset = find_preset(name)
    if preset is None:
        raise ConfigError(one_of(_OPTION, name, PRESETS))
    left_out = "".join(f"\n  - {text}" for text in preset.simplifications)
    return f"{preset.name}\n\nSource: {preset.source}.\n\nSimplifications:{left_out}"


def _vllm(given: dict[str, float]) -> Preset:
    numbers = {key: int(value) for key, value in given.items()}
    return Vllm(**numbers)


def _sglang(given: dict[str, float]) -> Preset:
    defaults = Sglang()
    return Sglang(given.get("ratio", defaults.ratio), int(given.get("chunk", 0)))


_BUILDERS: dict[str, Callable[[dict[str, float]], Preset]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "marconi": lambda given: MarconiPreset(**given),
    "stateless": lambda given: Stateless(tails=bool(given.get("tails", 1))),
    "unlimited": lambda given: Unlimited(),  # noqa: ARG005  # it has no parameters
}
