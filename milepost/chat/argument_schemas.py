"""A function's JSON Schema, taken apart into its arguments: for forms that write each one on its own.

Kimi K3 writes an argument's type before its value, and a string's value as it is, with no quotes around
it. So a schema is split twice: into properties, and each property's schema into the JSON types that it
allows. What the split can't express is left to the model: conditions that span several arguments
(``anyOf`` and the like beside ``properties``, ``dependentRequired``, ``minProperties``), keywords that
llguidance doesn't know, and for strings all but ``enum``, ``const``, ``pattern`` and the two lengths.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import unquote

import msgspec

from milepost.chat.text_pieces import without_surrogates
from milepost.errors import RequestError
from milepost.grammar import texts
from milepost.grammar.texts import Piece

__all__ = ["ArgumentSet", "Value", "argument_set", "arguments_schema", "json_type", "values_of"]

JSON_TYPES = ("string", "number", "boolean", "null", "object", "array")
# How deep references and alternatives are followed; what lies deeper may be anything.
MAX_DEPTH = 16
# How many alternatives are told apart; a schema of more, such as one that holds itself, may be anything.
MAX_BRANCHES = 64
MAX_STEPS = 4096
# Lengths up to here are counted; each character more makes the grammar larger.
MAX_COUNTED_CHARS = 4096

# Look-around and back references, which no finite automaton has.
_NOT_REGULAR = re.compile(r"\(\?<?[=!]|(?<!\\)(?:\\\\)*\\[1-9k]")
_DEFINITIONS = ("$defs", "definitions")
_SPANNING = ("allOf", "anyOf", "oneOf", "not", "if", "patternProperties")
_ANY_TEXT = "(?s:.*)"
# What these say depends on one another: of two schemas that have some of them each keeps its own.
_SIBLINGS = (("properties", "patternProperties", "additionalProperties"), ("items", "prefixItems"))
_NOTES = ("title", "description", "default", "examples", "deprecated", "$comment", "$schema", "$id", "$defs")
_PLAIN_VALUES = ("const", "enum", "default", "examples")
_WHOLE = "whole"


class Value(msgspec.Struct, frozen=True):
    """One form that an argument may have.

    Attributes:
        kind: the JSON type that stands before it.
        piece: what it spells.
    """

    kind: str
    piece: Piece


class ArgumentSet(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of one function.

    Attributes:
        properties: name -> schema.
        required: the names that must be there.
        others: the schema of arguments with other names; None when there must be none.
        root: the whole schema, which the others may refer to.
    """

    properties: Mapping[str, Any]
    required: frozenset[str] = frozenset()
    others: Any = None
    root: Mapping[str, Any] = {}


def argument_set(parameters: Mapping[str, Any] | None) -> ArgumentSet:
    """The arguments of a function's ``parameters``.

    As OpenAI has it, no schema means no arguments. Arguments that a schema doesn't name are refused unless
    it says ``additionalProperties``, names none at all, or has alternatives that might.
    """
    if parameters is None:
        return ArgumentSet(properties={})
    root = _resolved(parameters, parameters)
    properties = root.get("properties")
    named = isinstance(properties, Mapping)
    spanning = any(key in root for key in _SPANNING)
    others = root.get("additionalProperties", True if spanning or not named else None)
    required = root.get("required")
    names = required if isinstance(required, Sequence) and not isinstance(required, str) else ()
    return ArgumentSet(
        properties=dict(properties) if isinstance(properties, Mapping) else {},
        required=frozenset(name for name in names if isinstance(name, str)),
        others=None if others is False else others,
        root=parameters,
    )


def json_type(value: object) -> str:
    """The JSON type of a value: one word for all numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "object" if isinstance(value, Mapping) else "array"


def arguments_schema(parameters: Mapping[str, Any] | None) -> dict[str, Any]:
    """A function's ``parameters`` as the schema of one JSON object, closed as `argument_set` has it."""
    if parameters is None:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    closed = argument_set(parameters).others is None
    return {**parameters, "type": "object"} | ({"additionalProperties": False} if closed else {})


def values_of(schema: object, root: Mapping[str, Any], path: str) -> list[Value]:
    """The forms that an argument of this schema may have, at most one a JSON type.

    Args:
        schema: of the argument.
        root: the schema that its references point into.
        path: of the function's schema in the request.

    Raises:
        RequestError: it allows nothing, or can't be written as a grammar.
    """
    found: dict[str, list[Mapping[str, Any]]] = {}
    branches = list(islice(_Branches(root).of(schema), MAX_BRANCHES + 1))
    for branch in branches if len(branches) <= MAX_BRANCHES else [{}]:
        for kind in _kinds(branch):
            found.setdefault(kind, []).append(branch)
    try:
        pieces = {
            kind: _text(found[kind]) if kind == "string" else _literal(found[kind], kind, root)
            for kind in JSON_TYPES
            if kind in found
        }
    except RequestError as error:
        raise RequestError(f"{path} can't be held to: {error}", param=path) from None
    values = [Value(kind, piece) for kind, piece in pieces.items() if piece is not None]
    if not values:
        raise RequestError(f"{path} has an argument that can have no value: {schema!r:.80}.", param=path)
    return values


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    """`schema` with its own reference followed; one that leads nowhere allows everything."""
    for _ in range(MAX_DEPTH):
        reference = schema.get("$ref")
        if not isinstance(reference, str):
            return schema
        target = _target(reference, root)
        if not isinstance(target, Mapping):
            return {}
        schema = {**target, **{key: value for key, value in schema.items() if key != "$ref"}}
    return {}


def _target(reference: str, root: Mapping[str, Any]) -> object:
    """What a reference within `root` names (RFC 6901); True, which allows everything, if nothing."""
    target: Any = root
    for step in unquote(reference.removeprefix("#")).split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(target, Mapping) and name in target:
            target = target[name]
        elif isinstance(target, list) and name.isdecimal() and int(name) < len(target):
            target = target[int(name)]
        else:
            return True
    return target


class _Branches:
    """Takes schemas apart into their alternatives, each of them flat: without alternatives of its own.

    Args:
        root: what references point into.
    """

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._steps = 0

    def of(self, schema: object, depth: int = MAX_DEPTH) -> Iterator[Mapping[str, Any]]:
        """The alternatives, at most `depth` of them one in another; none when nothing is allowed."""
        self._steps += 1
        if schema is False:
            return
        if not isinstance(schema, Mapping) or depth == 0 or self._steps > MAX_STEPS:
            yield {}
            return
        reference = schema.get("$ref")
        parts: list[Sequence[object]] = []  # of each, one must hold
        if isinstance(reference, str):
            parts.append([_target(reference, self._root)])
        parts.extend([part] for part in _listed(schema, "allOf"))
        parts.extend(options for key in ("anyOf", "oneOf") if (options := _listed(schema, key)))
        taken = {"$ref", "allOf", "anyOf", "oneOf"} if parts else frozenset[str]()
        yield from self._together({k: v for k, v in schema.items() if k not in taken}, parts, depth - 1)

    def _together(
        self, flat: Mapping[str, Any], parts: Sequence[Sequence[object]], depth: int
    ) -> Iterator[Mapping[str, Any]]:
        if not parts:
            yield flat
            return
        for option in parts[0]:
            for branch in self.of(option, depth):
                both = _both(flat, branch)
                if both is not None:
                    yield from self._together(both, parts[1:], depth)


def _listed(schema: Mapping[str, Any], key: str) -> Sequence[object]:
    found = schema.get(key)
    return found if isinstance(found, list | tuple) else ()


def _both(schema: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any] | None:
    """A flat schema that allows what two of them do; None when they share no value.

    What they word differently stands in ``allOf``, for the compiler.
    """
    if ("const" in schema or "enum" in schema) and ("const" in other or "enum" in other):
        schema, other = _values_as_enum(schema), _values_as_enum(other)
    both, rest = dict(schema), {}
    for key, value in other.items():
        group = next((keys for keys in _SIBLINGS if key in keys), (key,))
        if (
            key in _NOTES
            or not any(name in schema for name in group)
            or (key != "enum" and schema.get(key) == value)
        ):
            both.setdefault(key, value)
        elif key == "type":
            both[key] = [kind for kind in _names(value) if _includes(_names(schema[key]), kind)]
            both[key] += [
                kind for kind in _names(schema[key]) if kind == "integer" and "number" in _names(value)
            ]
            if not both[key]:
                return None
        elif key == "enum":
            both[key] = [one for one in schema[key] if any(_same(one, each) for each in value)]
            if not both[key]:
                return None
        elif key == "required" and isinstance(value, list) and isinstance(schema[key], list):
            both[key] = [*schema[key], *value]
        else:
            rest[key] = value
    return both | ({"allOf": [*_listed(both, "allOf"), rest]} if rest else {})


def _values_as_enum(schema: Mapping[str, Any]) -> dict[str, Any]:
    values = _listed(schema, "enum")
    if "const" in schema:
        values = (
            [schema["const"]]
            if "enum" not in schema or any(_same(schema["const"], v) for v in values)
            else []
        )
    return {**{key: value for key, value in schema.items() if key != "const"}, "enum": values}


def _same(value: object, other: object) -> bool:
    """Whether two JSON values are equal; true is not 1."""
    return json_type(value) == json_type(other) and value == other


def _names(given: object) -> list[str]:
    """The types that a schema's ``type`` names. Whatever it is, it came from a client."""
    if isinstance(given, str):
        return [given]
    return [name for name in given if isinstance(name, str)] if isinstance(given, list | tuple) else []


def _includes(kinds: Sequence[str], kind: str) -> bool:
    return kind in kinds or (kind == "integer" and "number" in kinds)


def _kinds(schema: Mapping[str, Any]) -> list[str]:
    kinds: Sequence[str] = JSON_TYPES
    if "const" in schema:
        kinds = [json_type(schema["const"])]
    elif isinstance(schema.get("enum"), list | tuple):
        kinds = list(map(json_type, schema["enum"]))
    if "type" in schema:
        named = ["number" if kind == "integer" else kind for kind in _names(schema["type"])]
        kinds = [kind for kind in kinds if kind in named]
    return [kind for kind in JSON_TYPES if kind in kinds]


def _text(branches: Sequence[Mapping[str, Any]]) -> Piece | None:
    """A string as it is, by any of some schemas; None when no string will do."""
    patterns: list[str] = []
    for schema in branches:
        if "const" in schema or isinstance(schema.get("enum"), Sequence):
            given = [schema["const"]] if "const" in schema else schema["enum"]
            patterns += [re.escape(without_surrogates(option)) for option in given if isinstance(option, str)]
        elif isinstance(schema.get("pattern"), str) and not _NOT_REGULAR.search(schema["pattern"]):
            # Where there are lengths too the pattern counts: a text can be held to one of them.
            patterns.append(_unanchored(schema["pattern"]))
        else:
            patterns.append(_of_length(schema))
    if _ANY_TEXT in patterns:
        return texts.free_text()
    return texts.nested(texts.regex("|".join(dict.fromkeys(patterns)))) if patterns else None


def _of_length(schema: Mapping[str, Any]) -> str:
    least, most = _length(schema, "minLength"), _length(schema, "maxLength")
    if not least and (most is None or most > MAX_COUNTED_CHARS):
        return _ANY_TEXT
    least = min(least or 0, MAX_COUNTED_CHARS)
    return f"(?s:.{{{least},{'' if most is None or most > MAX_COUNTED_CHARS else most}}})"


def _length(schema: Mapping[str, Any], key: str) -> int | None:
    value = schema.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _unanchored(pattern: str) -> str:
    """JSON Schema looks for a pattern anywhere in a text; a grammar matches the whole of it."""
    return "|".join(map(_unanchored_alternative, _alternatives(pattern)))


def _unanchored_alternative(pattern: str) -> str:
    start = pattern.startswith("^")
    end = re.search(r"(?<!\\)(\\\\)*\$\Z", pattern) is not None
    body = pattern[1 if start else 0 : -1 if end else None]
    return f"{'' if start else _ANY_TEXT}(?:{body}){'' if end else _ANY_TEXT}"


def _alternatives(pattern: str) -> list[str]:
    """A pattern cut at the bars that stand outside of all groups and classes."""
    found, depth, in_class, start = [], 0, False, 0
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "\\":
            at += 1
        elif in_class:
            in_class = char != "]"
        elif char == "[":
            in_class = True
        elif char == "|" and depth == 0:
            found.append(pattern[start:at])
            start = at + 1
        else:
            depth += {"(": 1, ")": -1}.get(char, 0)
        at += 1
    return [*found, pattern[start:]]


def _literal(branches: Sequence[Mapping[str, Any]], kind: str, root: Mapping[str, Any]) -> Piece | None:
    """JSON of one type, by any of some schemas; None when no value of it will do."""
    limited = [only for schema in branches if (only := _limited(schema, kind)) is not None]
    if not limited:
        return None
    if kind == "null":
        return texts.literal("null")
    whole: dict[str, Any] = limited[0] if len(limited) == 1 else {"anyOf": limited}
    return texts.nested(texts.json_schema(_with_what_it_refers_to(whole, root), lenient=True))


def _with_what_it_refers_to(schema: dict[str, Any], root: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that was a part of `root`, with as much of that as its references need."""
    references = set(_references(schema))
    if not references:
        return schema
    definitions = {key: root[key] for key in _DEFINITIONS if key in root}
    references.update(_references(definitions))
    if all(reference.startswith(("#/$defs/", "#/definitions/")) for reference in references):
        return definitions | schema
    moved: dict[str, Any] = _moved(schema)
    return moved | {"$defs": {_WHOLE: _moved(root)}}


def _references(value: object) -> Iterator[str]:
    """The references in a schema."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            if key == "$ref" and isinstance(part, str):
                yield part
            elif key not in _PLAIN_VALUES:
                yield from _references(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _references(part)


def _moved(value: Any) -> Any:  # noqa: ANN401  # JSON
    """A schema whose references find their root among the definitions of another."""
    if isinstance(value, Mapping):
        return {
            key: f"#/$defs/{_WHOLE}{part[1:]}"
            if key == "$ref" and isinstance(part, str) and part.startswith("#")
            else part
            if key in _PLAIN_VALUES
            else _moved(part)
            for key, part in value.items()
        }
    return [_moved(part) for part in value] if isinstance(value, list | tuple) else value


def _limited(schema: Mapping[str, Any], kind: str) -> dict[str, Any] | None:
    """A schema that allows values of one type only."""
    limited = {key: value for key, value in schema.items() if key not in ("$schema", "$id")}
    if isinstance(schema.get("enum"), Sequence):
        limited["enum"] = [value for value in schema["enum"] if json_type(value) == kind]
        if not limited["enum"]:
            return None
    kinds = _names(schema.get("type", kind))
    limited["type"] = "integer" if kind == "number" and "number" not in kinds else kind
    return limited
