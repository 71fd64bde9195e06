"""Schemas made by chance, and what JSON they allow, decided without the compiler."""

from __future__ import annotations

import random
import re
from typing import Any

Schema = dict[str, Any]

_NAMES = ("a", "name", 'quo"te', "é", "a b", "")
_VALUES: tuple[Any, ...] = (None, True, False, 0, -3, 12, "ab", 'x"y', "", "é\n", [], [1], {"a": 1})
_PATTERNS = ("^[a-c]{2,5}$", "^(ab|c)+d?$", "^[0-9]{3}-[0-9]{2}$")


def random_schema(chance: random.Random, depth: int = 3) -> Schema:
    """A schema whose texts have an end."""
    kinds = [_string, _integer, _number, _constant, _enum, _pattern, _boolean]
    if depth:
        kinds += [_object, _array, _any_of] * 2
    return chance.choice(kinds)(chance, depth)


def valid(value: Any, schema: Schema) -> bool:
    """Whether a schema of `random_schema` allows a value (JSON Schema, draft 2020-12)."""
    if "anyOf" in schema:
        return any(valid(value, option) for option in schema["anyOf"])
    if "enum" in schema:
        return any(_same(value, option) for option in schema["enum"])
    if "const" in schema:
        return _same(value, schema["const"])
    return _CHECKS[schema["type"]](value, schema)


def _string(chance: random.Random, _: int) -> Schema:
    least = chance.randrange(4)
    return {"type": "string", "minLength": least, "maxLength": least + chance.randrange(6)}


def _pattern(chance: random.Random, _: int) -> Schema:
    return {"type": "string", "pattern": chance.choice(_PATTERNS)}


def _integer(chance: random.Random, _: int) -> Schema:
    least = chance.randrange(-50, 50)
    return {"type": "integer", "minimum": least, "maximum": least + chance.randrange(200)}


def _number(chance: random.Random, _: int) -> Schema:
    return {"type": "number", "minimum": 0, "exclusiveMaximum": chance.choice([1, 2.5, 100])}


def _boolean(_: random.Random, __: int) -> Schema:
    return {"type": "boolean"}


def _constant(chance: random.Random, _: int) -> Schema:
    return {"const": chance.choice(_VALUES)}


def _enum(chance: random.Random, _: int) -> Schema:
    return {"enum": chance.sample(_VALUES, chance.randrange(1, 5))}


def _object(chance: random.Random, depth: int) -> Schema:
    names = chance.sample(_NAMES, chance.randrange(4))
    return {
        "type": "object",
        "properties": {name: random_schema(chance, depth - 1) for name in names},
        "required": [name for name in names if chance.random() < 0.6],
        "additionalProperties": False,
    }


def _array(chance: random.Random, depth: int) -> Schema:
    least = chance.randrange(3)
    return {
        "type": "array",
        "items": random_schema(chance, depth - 1),
        "minItems": least,
        "maxItems": least + chance.randrange(3),
    }


def _any_of(chance: random.Random, depth: int) -> Schema:
    return {"anyOf": [random_schema(chance, depth - 1) for _ in range(chance.randrange(1, 4))]}


def _same(value: object, other: object) -> bool:
    if isinstance(value, bool) or isinstance(other, bool):
        return value is other
    return value == other


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_string(value: Any, schema: Schema) -> bool:
    return (
        isinstance(value, str)
        and schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1 << 30)
        and re.search(schema.get("pattern", ""), value) is not None
    )


def _is_integer(value: Any, schema: Schema) -> bool:
    return _is_number(value) and value == int(value) and schema["minimum"] <= value <= schema["maximum"]


def _is_in_range(value: Any, schema: Schema) -> bool:
    return _is_number(value) and bool(schema["minimum"] <= value < schema["exclusiveMaximum"])


def _is_object(value: Any, schema: Schema) -> bool:
    return (
        isinstance(value, dict)
        and set(schema["required"]) <= value.keys() <= schema["properties"].keys()
        and all(valid(part, schema["properties"][name]) for name, part in value.items())
    )


def _is_array(value: Any, schema: Schema) -> bool:
    return (
        isinstance(value, list)
        and schema["minItems"] <= len(value) <= schema["maxItems"]
        and all(valid(part, schema["items"]) for part in value)
    )


_CHECKS = {
    "string": _is_string,
    "integer": _is_integer,
    "number": _is_in_range,
    "boolean": lambda value, _: isinstance(value, bool),
    "object": _is_object,
    "array": _is_array,
}
