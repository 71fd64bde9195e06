"""A model by its name or its path: the published ones, the shipped one, or the user's own."""

from __future__ import annotations

from pathlib import Path

import msgspec

from milepost.config_json import parse_config, read_model_spec
from milepost.error_text import nearest, printable
from milepost.errors import CheckpointError, ConfigError
from milepost.model_spec import ModelSpec
from milepost.shapes.configs.by_model_type import ENGINE_FAMILIES, FAMILIES, family_of
from milepost.shapes.names import SHAPES

__all__ = ["MODELS", "find_model"]

_ASSETS = Path(__file__).parents[1] / "assets"

MODELS: dict[str, Path] = {
    "kimi-k3": _ASSETS / "models" / "kimi-k3",
    "kimi-linear": _ASSETS / "models" / "kimi-linear",
    "milepost-toy-k3": _ASSETS / "milepost-toy-k3",
}
"""Known names and the folders of their config.json."""


def find_model(name: str) -> tuple[str, ModelSpec]:
    """A model's name and what it is made of.

    Args:
        name: one of `MODELS`, in any case; or the path of a checkpoint folder or of its config.json.

    Returns:
        the name that results carry, and the spec.

    Raises:
        ConfigError: neither a known name nor a path that exists; or a model of which only sizes are known.
        CheckpointError: the config can't be read or describes another kind of model.
    """
    known = MODELS.get(name.lower())
    if known is not None:
        return name.lower(), read_model_spec(known)
    path = Path(name)
    if name.lower() in SHAPES or _family(path) in FAMILIES:
        raise ConfigError(
            "Of this model only sizes are known: milepost plan knows it, the engine and the simulator don't. "
            f"They take {', '.join(MODELS)}, and a config.json of {' or '.join(ENGINE_FAMILIES)}. "
            f"Given: {name!r:.200}."
        )
    if path.is_dir():
        return printable(path.resolve().name), read_model_spec(path)
    if path.is_file() and path.name == "config.json":
        return printable(path.resolve().parent.name), read_model_spec(path.parent)
    if path.is_file():
        return printable(path.stem), parse_config(_object_in(path), source=path)
    raise ConfigError(
        f"A model must be one of {', '.join(MODELS)}, or the path of a config.json or of its folder. "
        f"Given: {name!r}.{nearest(name, MODELS)}"
    )


def _family(path: Path) -> object:
    """A config's model_type; None where there is none to read, of which others complain."""
    try:
        content = msgspec.json.decode((path / "config.json" if path.is_dir() else path).read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return family_of(content)


def _object_in(path: Path) -> dict[str, object]:
    try:
        content = msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path} can't be read: {error.strerror}.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} is not valid JSON: {error}.") from None
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} must hold a JSON object. Given: {type(content).__name__}.")
    return content
