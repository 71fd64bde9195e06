"""The shape of a model by its name or its path."""

from __future__ import annotations

from pathlib import Path

import msgspec

from milepost.config_json import parse_config
from milepost.error_text import nearest, printable
from milepost.errors import CheckpointError, ConfigError
from milepost.shapes.of_spec import shape_of
from milepost.shapes.shape import ModelShape

__all__ = ["SHAPES", "find_shape"]

_ASSETS = Path(__file__).parents[1] / "assets"

SHAPES: dict[str, Path] = {
    "kimi-k3": _ASSETS / "models" / "kimi-k3",
    "kimi-linear": _ASSETS / "models" / "kimi-linear",
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
    if path.is_dir():
        return printable(path.resolve().name), _read(path / "config.json")
    if path.is_file():
        resolved = path.resolve()
        return printable(resolved.parent.name if path.name == "config.json" else path.stem), _read(path)
    raise ConfigError(
        f"A model must be one of {', '.join(SHAPES)}, or the path of a config.json or of its folder. "
        f"Given: {name!r:.200}.{nearest(name, SHAPES)}"
    )


def _read(path: Path) -> ModelShape:
    try:
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object. Given: {type(content).__name__}.")
    return shape_of(parse_config(content, source=path))
