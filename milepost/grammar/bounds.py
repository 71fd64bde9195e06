"""What a grammar may ask of the compiler: the few things that its own limits don't bound.

Measured with llguidance 1.9.1, which does these without counting their cost:

- for a ``multipleOf`` it builds a state for every remainder: 1,234,567 took ten seconds and 600 MB;
- it tests every pair of ``patternProperties``: 300 took a second, 2,000 minutes;
- it rounds whole numbers beyond 2**53 that must be equal to something;
- a character's step through patterns that must all hold doubles with each: 16 took 0.1 s, 100 no one knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from math import lcm
from typing import Any
from urllib.parse import unquote

from milepost.errors import RequestError
from milepost.types import Grammar

__all__ = ["require_bounded"]

_MAX_CHARS = 1 << 20
_MAX_PATTERNS = 64
_MAX_MULTIPLE = 20_000
_MAX_TOGETHER = 14
_MAX_NUMBER_CHARS = 100
_MAX_SCHEMAS = 2000
_SCHEMA_MARK = "%json"
_SCHEMA = re.compile(rf"{_SCHEMA_MARK}\s*")


def require_bounded(grammar: Grammar) -> None:
    """Refuse a grammar whose compilation could take too long.

    Raises:
        RequestError: and why.
    """
    text = grammar.lark
    if len(text) > _MAX_CHARS:
        raise RequestError(
            f"A grammar must be at most {_MAX_CHARS} characters. Given: {len(text)}.", param="grammar"
        )
    try:
        _require_bounded_schemas(text)
    except RecursionError:
        raise RequestError("A JSON schema must not be nested that deep.", param="grammar") from None


def _require_bounded_schemas(text: str) -> None:
    num_schemas = text.count(_SCHEMA_MARK)
    if num_schemas > _MAX_SCHEMAS:
        raise RequestError(
            f"A grammar must hold at most {_MAX_SCHEMAS} JSON schemas. Given: {num_schemas}.", param="grammar"
        )
    schemas = list(_schemas(text))
    objects = [fields for schema in schemas for fields in _objects(schema)]
    patterns = [fields.get("patternProperties") for fields in objects]
    num_patterns = sum(len(each) for each in patterns if isinstance(each, dict))
    if num_patterns > _MAX_PATTERNS:
        raise RequestError(
            f"A grammar's schemas must hold at most {_MAX_PATTERNS} patternProperties. "
            f"Given: {num_patterns}.",
            param="grammar",
        )
    multiple = 1
    for fields in objects:
        multiple = lcm(multiple, _digits(fields.get("multipleOf")))
        if multiple > _MAX_MULTIPLE:
            raise RequestError(
                "All multipleOf of a grammar's schemas, their digits without the point, must have a common "
                f"multiple of at most {_MAX_MULTIPLE}. Give smaller ones, or leave some out.",
                param="grammar",
            )
    for fields in objects:
        _require_exact([fields.get("const"), fields.get("enum")])
    together = max((_Together(schema).of(schema) for schema in schemas), default=0)
    together += text.replace("&&", "").count("&")  # the two are of a regular expression's classes
    if together > _MAX_TOGETHER:
        raise RequestError(
            f"At most {_MAX_TOGETHER} patterns and formats of a grammar may have to hold together (by allOf, "
            "$ref or &). Given: more. Leave some out.",
            param="grammar",
        )


def _require_exact(values: object) -> None:
    """Refuse constants that the compiler would round: it knows numbers as 64-bit floats."""
    # One without a point and an exponent is meant to the last digit.
    if isinstance(values, Decimal) and values.as_tuple().exponent == 0 and Decimal(float(values)) != values:
        raise RequestError(
            f"A number in a JSON schema's const or enum must be one that a double can hold. Given: {values}. "
            "Let it be a string.",
            param="grammar",
        )
    for value in values.values() if isinstance(values, dict) else values if isinstance(values, list) else ():
        _require_exact(value)


class _Together:
    """How many patterns may have to hold at the same place of a schema's value; never too few."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._of_refs: dict[str, int] = {}

    def of(self, schema: object) -> int:
        """Of one part of the schema."""
        if isinstance(schema, list):
            return max(map(self.of, schema), default=0)
        if not isinstance(schema, dict):
            return 0
        count = sum(isinstance(schema.get(name), str) for name in ("pattern", "format"))
        every = schema.get("allOf")
        if isinstance(every, list):
            count += sum(map(self.of, every))
        reference = schema.get("$ref")
        if isinstance(reference, str):
            count += self._of_ref(reference)
        return count + max((self.of(part) for name, part in schema.items() if part is not every), default=0)

    def _of_ref(self, reference: str) -> int:
        if reference not in self._of_refs:
            self._of_refs[reference] = 0  # until it is known: it may lead back to itself
            self._of_refs[reference] = self.of(self._target(reference))
        return self._of_refs[reference]

    def _target(self, reference: str) -> object:
        """What a JSON pointer names (RFC 6901); None for what is not there."""
        value = self._root
        for step in unquote(reference.removeprefix("#")).split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            if isinstance(value, dict):
                value = value.get(name)
            elif isinstance(value, list) and name.isdecimal() and int(name) < len(value):
                value = value[int(name)]
            else:
                return None
        return value


def _schemas(text: str) -> Iterator[object]:
    """The schemas in a grammar's text."""
    decoder = json.JSONDecoder(parse_float=_number, parse_int=_number)
    for place in _SCHEMA.finditer(text):
        try:
            schema, _ = decoder.raw_decode(text, place.end())
        except ValueError:
            continue  # no JSON, which the compiler will say
        yield schema


def _objects(schema: object) -> Iterator[dict[str, Any]]:
    """Every JSON object in a schema."""
    waiting = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield value
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)


def _number(text: str) -> Decimal:
    """A number of a schema, whatever its size."""
    if len(text) > _MAX_NUMBER_CHARS:
        raise RequestError(
            f"A number in a JSON schema must be at most {_MAX_NUMBER_CHARS} characters. Given: {len(text)}.",
            param="grammar",
        )
    try:
        return Decimal(text)
    except ArithmeticError:
        raise RequestError(f"A number in a JSON schema is out of range: {text}.", param="grammar") from None


def _digits(value: object) -> int:
    """The digits of a ``multipleOf`` as an integer; 1 for what is none."""
    if not isinstance(value, Decimal) or value <= 0:
        return 1
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)  # it is finite
    spelled = "".join(map(str, digits))
    stripped = spelled.rstrip("0")
    zeros = exponent + len(spelled) - len(stripped)
    # With twenty zeros it is over the limit, however many more there are.
    return int(stripped + "0" * min(max(zeros, 0), 20))
