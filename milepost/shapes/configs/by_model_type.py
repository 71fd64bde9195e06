"""A config.json of any known family to its shape, by the name that the file gives its family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from milepost.config_json import parse_config
from milepost.error_text import as_json, listing, nearest
from milepost.errors import CheckpointError
from milepost.json_fields import JsonFields
from milepost.model_spec import ModelFamily
from milepost.shapes.configs.deepseek_v3 import deepseek_v3_shape
from milepost.shapes.configs.minimax_m2 import minimax_m2_shape
from milepost.shapes.configs.model_file import ModelFile
from milepost.shapes.configs.nemotron_h import nemotron_h_shape
from milepost.shapes.configs.qwen import qwen_hybrid_shape, qwen_moe_shape
from milepost.shapes.configs.stored_bytes import read_stored_bytes
from milepost.shapes.of_spec import shape_of
from milepost.shapes.shape import ModelShape

__all__ = ["ENGINE_FAMILIES", "FAMILIES", "family_of", "read_shape"]

ENGINE_FAMILIES = tuple(family.value for family in ModelFamily)
"""Families that the engine runs too; their files are read by its own strict rules."""

FAMILIES: dict[str, Callable[[ModelFile], ModelShape]] = {
    "qwen3_next": qwen_hybrid_shape,
    "qwen3_5": qwen_hybrid_shape,
    "qwen3_5_moe": qwen_hybrid_shape,
    "qwen3_moe": qwen_moe_shape,
    "nemotron_h": nemotron_h_shape,
    "deepseek_v3": deepseek_v3_shape,
    "kimi_k2": deepseek_v3_shape,
    "minimax_m2": minimax_m2_shape,
}
"""Families that only sizing knows."""

# A file whose language model stands in its text_config, and a text_config alone, have names of their own.
_OTHER_NAMES = {"qwen3_5_text": "qwen3_5", "qwen3_5_moe_text": "qwen3_5_moe", "kimi_k25": "kimi_k2"}

# What MLX and older versions of compressed-tensors call their settings.
_OTHER_SETTINGS = ("quantization", "compression_config")


def family_of(config: object) -> str | None:
    """The family that a decoded config.json names, by the name in `FAMILIES` where it has several."""
    name = config.get("model_type") if isinstance(config, dict) else None
    return _OTHER_NAMES.get(name, name) if isinstance(name, str) else None


def read_shape(
    config: Mapping[str, Any],
    *,
    quantization: Mapping[str, Any] | None = None,
    source: Path | str = "config.json",
) -> ModelShape:
    """The shape that a decoded config.json describes.

    Of the families that only sizing knows, fields that sizes don't depend on are ignored.

    Args:
        config: the decoded file.
        quantization: the decoded hf_quant_config.json beside it, which counts when config.json is silent.
        source: what messages call the file.

    Raises:
        CheckpointError: an unknown family; or fields that are missing, of the wrong type or range, or of a
            kind that is not understood, all in one message.
    """
    family = family_of(config)
    if family in ENGINE_FAMILIES:
        if quantization is not None:
            raise CheckpointError(
                f"{source}: the hf_quant_config.json beside it is not understood for {family}, whose "
                "quantisation stands in config.json's quantization_config."
            )
        return shape_of(parse_config(config, source=source))
    if family not in FAMILIES:
        known, given = (*ENGINE_FAMILIES, *FAMILIES), config.get("model_type")
        hint = nearest(given, known) if isinstance(given, str) else ""
        raise CheckpointError(
            f"{source}: model_type must be one of {', '.join(known)}. Given: {as_json(given)}.{hint}"
        )
    problems: list[str] = []
    top = JsonFields(config, "", problems)
    text = top.section("text_config") if top.optional("text_config") is not None else top
    stored = read_stored_bytes(_quantization(text, top, quantization, problems))
    shape = FAMILIES[family](ModelFile(family, text, top, stored))
    if problems:
        unique = list(dict.fromkeys(problems))
        count = "1 problem" if len(unique) == 1 else f"{len(unique)} problems"
        raise CheckpointError(f"{source} can't be used ({count}):{listing(unique)}")
    return shape


def _quantization(
    text: JsonFields, top: JsonFields, beside: Mapping[str, Any] | None, problems: list[str]
) -> JsonFields:
    """The settings where they are: at either level of config.json, or in the file beside it."""
    for fields in (top, text):
        for name in _OTHER_SETTINGS:
            if fields.optional(name) is not None:
                fields.problem(name, "is not known of; what is known stands in quantization_config")
        if fields.optional("quantization_config") is not None:
            return fields.section("quantization_config")
    if beside is None:
        return JsonFields({}, "", problems)
    settings = beside.get("quantization")
    if not isinstance(settings, dict):
        problems.append(f"hf_quant_config.json: quantization must be an object. Given: {as_json(settings)}")
        settings = {"quant_algo": "FP8"}
    return JsonFields({**settings, "quant_method": "modelopt"}, "hf_quant_config.json: ", problems)
