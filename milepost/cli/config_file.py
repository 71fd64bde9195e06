"""``milepost serve --config FILE``: what an operator decides, in a TOML file.

Two tables, ``[engine]`` and ``[server]``, with the fields of `EngineConfig` and `ServerConfig` as keys; a
dash in a key stands for an underscore. Paths are relative to the file. What the command line says wins.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

import msgspec

from milepost.cli.shipped_model import SHIPPED_MODEL_NAME, shipped_model
from milepost.config import EngineConfig
from milepost.error_text import nearest
from milepost.errors import ConfigError

__all__ = ["DISK_CACHE", "NO_FILE", "PATHS", "ConfigFile", "read_config_file", "tables"]

PATHS = ("model", "chat_template", "api_keys", "tls_cert", "tls_key")
"""Fields that name a file or a folder."""

DISK_CACHE = "disk_cache"
"""A field that names one before its last comma."""

_KINDS = {int: "a whole number", float: "a number", str: "a string", bool: "true or false"}
_HEADER = re.compile(r"\s*\[\s*([\w-]+)\s*\]")
_KEY = re.compile(r"""\s*["']?([\w.-]+)["']?\s*=""")


@dataclass(frozen=True)
class ConfigFile:
    """What a file says; the default is one that says nothing.

    Attributes:
        path: of the file.
        text: all of it, to find lines in.
        engine: fields of `EngineConfig` and their values.
        server: fields of `ServerConfig` and theirs.
    """

    path: Path = Path()
    text: str = ""
    engine: Mapping[str, Any] = field(default_factory=dict)
    server: Mapping[str, Any] = field(default_factory=dict)

    def where(self, table: str, key: str) -> str:
        """Where a key stands, for an error: ``FILE, line 3, [server]``."""
        line = _line(self.text, table, key)
        place = f", line {line}" if line else ""
        return f"{self.path}{place}, [{table}]"


NO_FILE = ConfigFile()
"""Of a command line that names none."""


def tables() -> dict[str, type[msgspec.Struct]]:
    """The tables of a file and what their keys are the fields of."""
    from milepost.server.config import ServerConfig  # with the HTTP stack, which takes a while

    return {"engine": EngineConfig, "server": ServerConfig}


def read_config_file(path: Path) -> ConfigFile:
    """Read a file; whether values are in range is checked where they are used.

    Raises:
        ConfigError: not TOML, an unknown table or key (with the nearest), a value of the wrong kind.
        OSError: it can't be read.
    """
    try:
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} must be UTF-8 text ({error}).") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"{path} is not TOML: {error}.") from None
    known = tables()
    file = ConfigFile(path, text)
    for name, table in content.items():
        if name not in known or not isinstance(table, dict):
            raise ConfigError(_no_table(file, name, known))
    found = {name: _fields(file, name, content.get(name, {}), struct) for name, struct in known.items()}
    return ConfigFile(path, text, **found)


def _no_table(file: ConfigFile, name: str, known: Mapping[str, type[msgspec.Struct]]) -> str:
    line = _line(file.text, "", name)
    place = f"{file.path}, line {line}" if line else f"{file.path}"
    for table, struct in known.items():
        if name.replace("-", "_") in struct.__struct_fields__:
            return f"{place}: {name!r} stands in no table. Put it under [{table}]."
    shown = ", ".join(f"[{table}]" for table in known)
    return f"{place}: there is no table {name!r:.100}.{nearest(name, known)} Known: {shown}."


def _fields(
    file: ConfigFile, table: str, content: Mapping[str, object], struct: type[msgspec.Struct]
) -> dict[str, Any]:
    """The values of a table by the names of their fields."""
    fields = {one.name: one for one in msgspec.structs.fields(struct)}
    values: dict[str, Any] = {}
    for key, value in content.items():
        name = key.replace("-", "_")
        if name not in fields:
            hint = nearest(name, fields) or f" Known: {', '.join(fields)}."
            raise ConfigError(f"{file.where(table, key)}: unknown key {key!r:.100}.{hint}")
        if name in values:
            raise ConfigError(f"{file.where(table, key)}: {name} is given twice, with a dash and without.")
        try:
            values[name] = msgspec.convert(value, fields[name].type)
        except msgspec.ValidationError:
            kind = _kind(fields[name].type)
            raise ConfigError(
                f"{file.where(table, key)}: {key} must be {kind}. Given: {value!r:.100}."
            ) from None
        if isinstance(value, str) and "\0" in value:  # no path and no name can
            raise ConfigError(
                f"{file.where(table, key)}: {key} must not hold a character of code 0. Given: {value!r:.100}."
            )
        values[name] = _beside(file.path, name, values[name])
    return values


def _beside(path: Path, name: str, value: Any) -> Any:  # noqa: ANN401 - whatever a field holds
    """A path as seen from the file's folder; other values as they are."""
    folder = path.absolute().parent
    if name == "model" and value == SHIPPED_MODEL_NAME:
        return str(shipped_model())
    if name in PATHS and value:
        return str(folder / Path(value).expanduser())
    if name == DISK_CACHE:
        place, comma, size = value.rpartition(",")
        return f"{folder / Path(place.strip()).expanduser()},{size}" if comma and place.strip() else value
    return value


def _kind(kind: Any) -> str:  # noqa: ANN401 - types and unions of them
    """A field's type in words."""
    if isinstance(kind, UnionType):
        return " or ".join(_kind(one) for one in get_args(kind) if one is not NoneType)
    return "a list of strings" if get_origin(kind) is tuple else _KINDS[kind]


def _line(text: str, table: str, key: str) -> int | None:
    """The number of the line on which a key or, with no table, a header or key stands."""
    current = ""
    for number, line in enumerate(text.splitlines(), 1):
        if header := _HEADER.match(line):
            current = header[1]
            if not table and current == key:
                return number
        elif found := _KEY.match(line):
            spelt = f"{current}.{found[1]}" if current else found[1]
            if spelt == (f"{table}.{key}" if table else key):
                return number
    return None
