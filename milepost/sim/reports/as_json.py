"""Results as JSON: a list of objects, one a line, in plain types."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import msgspec

from milepost.sim.runs import RunResult

__all__ = ["finite", "to_json", "to_objects"]

_FIRST = (
    "trace",
    "model",
    "policy",
    "eviction",
    "layout",
    "preset",
    "match_unit",
    "budget_bytes",
    "requests",
    "input_tokens",
    "hit_tokens",
    "hit_rate",
    "snapshots_per_request",
    "state_bytes_mean",
    "kv_bytes_mean",
    "losses",
    "ttft",
    "tpot",
)


def to_objects(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """Each result as a dict of plain types; what is no finite number is None.

    The keys are `RunResult`'s, those that readers look for first; ``ttft`` and ``tpot`` are objects of
    ``mean``, ``p50``, ``p90`` and ``p99`` seconds, or None.
    """
    objects = []
    for result in results:
        fields = finite(msgspec.to_builtins(result))
        objects.append({name: fields[name] for name in _FIRST} | fields)
    return objects


def to_json(results: Sequence[RunResult]) -> str:
    """`to_objects` as text: valid JSON with an object a line."""
    lines = (json.dumps(fields, allow_nan=False, ensure_ascii=False) for fields in to_objects(results))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def finite(value: Any) -> Any:  # noqa: ANN401 - JSON of any depth
    """Plain types with None for what is no finite number, which JSON lacks."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value
