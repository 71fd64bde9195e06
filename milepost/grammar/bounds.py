"""What a grammar may ask of the compiler: the few things that its own limits don't bound.

Measured with llguidance 1.9.1, which builds these without counting their cost: for a ``multipleOf`` an
automaton with a state for every remainder, for ``patternProperties`` a test of every pair of patterns.
Multiples of 1,234,567 took ten seconds and 600 MB, 2,000 patterns minutes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from math import lcm
from typing import Any

from milepost.errors import RequestError
from milepost.types import Grammar

__all__ = ["require_bounded"]

_MAX_CHARS = 1 << 20
_MAX_PATTERNS = 64
_MAX_MULTIPLE = 20_000
_MAX_NUMBER_CHARS = 100
_SCHEMA = re.compile(r"%json\s*")


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
    num_patterns, multiple = 0, 1
    for fields in _objects(text):
        patterns = fields.get("patternProperties")
        num_patterns += len(patterns) if isinstance(patterns, dict) else 0
        multiple = lcm(multiple, _digits(fields.get("multipleOf")))
    if num_patterns > _MAX_PATTERNS:
        raise RequestError(
            f"A grammar's schemas must hold at most {_MAX_PATTERNS} patternProperties. "
            f"Given: {num_patterns}.",
            param="grammar",
        )
    if multiple > _MAX_MULTIPLE:
        raise RequestError(
            "All multipleOf of a grammar's schemas, their digits without the point, must have a common "
            f"multiple of at most {_MAX_MULTIPLE}. Give smaller ones, or leave some out.",
            param="grammar",
        )


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Every JSON object in the schemas of a grammar's text."""
    decoder = json.JSONDecoder(parse_float=_number, parse_int=_number)
    for place in _SCHEMA.finditer(text):
        try:
            schema, _ = decoder.raw_decode(text, place.end())
        except RecursionError:
            raise RequestError("A JSON schema must not be nested that deep.", param="grammar") from None
        except ValueError:
            continue  # no JSON, which the compiler will say
        yield from _within(schema)


def _within(schema: object) -> Iterator[dict[str, Any]]:
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
    return Decimal(text)


def _digits(value: object) -> int:
    """The digits of a ``multipleOf`` as an integer; 1 for what is none."""
    if not isinstance(value, Decimal) or value <= 0:
        return 1
    _, digits, exponent = value.normalize().as_tuple()
    assert isinstance(exponent, int)  # it is finite
    whole = int("".join(map(str, digits)))
    # With as many zeros it is over the limit, however many more there are.
    return whole * int("1" + "0" * min(max(exponent, 0), 20))
