"""The shape of a model by its name or its path."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from milepost.error_text import nearest, printable
from milepost.errors import CheckpointError, ConfigError
from milepost.shapes.configs.by_model_type import read_shape
from milepost.shapes.shape import ModelShape

__all__ = ["SHAPES", "find_shape"]

_ASSETS = Path(__file__).parents[1] / "assets"

_MODELS = (
    "kimi-k3",
    "kimi-linear",
    "qwen3-next-80b-a3b",
    "qwen3.5-4b",
    "qwen3.5-27b",
    "qwen3.5-397b-a17b",
    "qwen3-235b-a22b",
    "nemotron-3-nano",
    "nemotron-3-super",
    "deepseek-v3",
    "kimi-k2",
    "minimax-m2.5",
)

SHAPES: dict[str, Path] = {
    **{name: _ASSETS / "models" / name for name in _MODELS},
    "qwen3.8-27b": _ASSETS / "models" / "qwen3.5-27b",  # of the same sizes
    "milepost-toy-k3": _ASSETS / "milepost-toy-k3",
}
"""Known names and the folders of their config.json."""


def find_shape(name: str) -> tuple[str, ModelShape]:
    """A model's name and its numbers.

    Args:
        name: one of `SHAPES`, in any case; or the path of a config.json or of its folder.

    Raises:
        ConfigError: neither a known name nor a path that exists.
        CheckpointError: the config can't be read or describes a model whose sizes are not known.
    """
    known = SHAPES.get(name.lower())
    if known is not None:
        return name.lower(), _read(known / "config.json")
    path = Path(name)
    if name and path.is_dir():  # no name at all is the path "."
        return printable(path.resolve().name), _read(path / "config.json")
    if path.is_file():
        resolved = path.resolve()
        return printable(resolved.parent.name if path.name == "config.json" else path.stem), _read(path)
    raise ConfigError(
        f"A model must be one of {', '.join(SHAPES)}, or the path of a config.json or of its folder. "
        f"Given: {name!r:.200}.{nearest(name, SHAPES)}"
    )


def _read(path: Path) -> ModelShape:
    beside = path.with_name("hf_quant_config.json")
    quantization = _object_in(beside) if path.name == "config.json" and beside.is_file() else None
    return read_shape(_object_in(path), quantization=quantization, source=path)


def _object_in(path: Path) -> dict[str, Any]:
    try:
        content = _decode(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object. Given: {type(content).__name__}.")
    return content


def _decode(content: bytes) -> object:
    try:
        return msgspec.json.decode(content)
    except msgspec.DecodeError:
        # Some published files (Nemotron 3 Super's) hold Python's Infinity, which is no JSON. No size is it.
        decoded = json.loads(content.decode(), parse_constant=lambda _: None)
        return msgspec.json.decode(msgspec.json.encode(decoded))
