"""A plan as JSON: its fields in plain types, with the derivation of every number."""

from __future__ import annotations

import json

import msgspec

from milepost.sim.reports.as_json import finite

__all__ = ["to_json"]


def to_json(plan: msgspec.Struct) -> str:
    """A plan as text of one JSON object, whose keys are the plan's fields; no finite number is null.

    The text has a line for each field and, in a field that is a list of objects, for each of these.
    """
    fields = finite(msgspec.to_builtins(plan))
    return (
        "{\n" + ",\n".join(f"{json.dumps(name)}: {_value(value)}" for name, value in fields.items()) + "\n}\n"
    )


def _value(value: object) -> str:
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[\n" + ",\n".join(f"  {_text(item)}" for item in value) + "\n]"
    return _text(value)


def _text(value: object) -> str:
    return json.dumps(value, allow_nan=False, ensure_ascii=False)
