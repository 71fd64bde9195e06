"""The file that ``milepost serve --print-config`` writes: every option, its meaning and its default."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

import msgspec

from milepost.cli.config_file import DISK_CACHE, PATHS
from milepost.cli.shipped_model import SHIPPED_MODEL_NAME, shipped_model
from milepost.config import EngineConfig
from milepost.errors import ConfigError

__all__ = ["config_text"]

_SECRETS = {"cache_key": "MILEPOST_CACHE_KEY"}
_WIDTH = 100
_ATTRIBUTE = re.compile(r"^    (\w+): (.*(?:\n      .*)*)", re.MULTILINE)

_HEAD = """\
# Options of `milepost serve --config FILE`. A value behind a # is the default; take the # away to change it.
# What the command line says wins. Paths are relative to this file.
"""


def config_text(engine: EngineConfig, server: msgspec.Struct) -> str:
    """A TOML file that `milepost.cli.config_file` reads back to these options.

    Defaults are written as comments, so that a later version's own hold; a secret is never written.

    Raises:
        ConfigError: a name is no text, which TOML can't hold.
    """
    parts = [_HEAD, "[engine]\n", *_entries(engine), "[server]\n", *_entries(server)]
    return "\n".join(parts)


def _entries(config: msgspec.Struct) -> Iterator[str]:
    meanings = dict(_ATTRIBUTE.findall(inspect.getdoc(type(config)) or ""))
    for field in msgspec.structs.fields(type(config)):
        value = getattr(config, field.name)
        meaning = re.sub(r"\bNone\b", "left out", " ".join(meanings.get(field.name, "").split()))
        yield _comment(field.name, meaning) + _line(field, value)


def _comment(name: str, meaning: str) -> str:
    return textwrap.fill(
        f"{name}: {meaning}", _WIDTH, initial_indent="# ", subsequent_indent="#   ", break_long_words=False
    )


def _line(field: msgspec.structs.FieldInfo, value: object) -> str:
    if field.name in _SECRETS:
        return f"\n# It is never written here: set ${_SECRETS[field.name]}.\n"
    if value == field.default:
        return f"\n# {field.name} =\n" if value is None else f"\n# {field.name} = {_toml(value)}\n"
    return f"\n{field.name} = {_toml(_from_anywhere(field.name, value))}\n"


def _from_anywhere(name: str, value: object) -> object:
    """A path that holds wherever the file will lie."""
    if name == "model" and value == str(shipped_model()):
        return SHIPPED_MODEL_NAME
    if name in PATHS:
        return str(Path(str(value)).absolute())
    if name == DISK_CACHE:
        place, _, size = str(value).rpartition(",")
        return f"{Path(place.strip()).absolute()},{size}"
    return value


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if not isinstance(value, str):
        return json.dumps(value)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(
            f"A config file is UTF-8 and can't hold {value!r:.100}. Choose another name."
        ) from None
    # JSON's escapes are TOML's, but for the one control character that JSON lets pass.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
