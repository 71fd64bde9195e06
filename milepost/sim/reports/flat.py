"""Results as rows: CSV, and Parquet where polars is installed.

Nested fields become columns: ``losses.unseen``, ``ttft.p90``. What holds many values for one result, the
samples over time and the counts by depth, is left out; JSON has it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from milepost.errors import ConfigError
from milepost.sim.reports.as_json import to_objects
from milepost.sim.reports.files import save
from milepost.sim.runs import Percentiles, RunResult, StateUse

__all__ = ["to_rows", "write_csv", "write_parquet"]

_MANY = ("samples", "depth_edges", "written_by_depth", "used_by_depth")
_PERCENTILES = Percentiles.__struct_fields__
_STATES = StateUse.__struct_fields__
_NESTED = {"ttft": _PERCENTILES, "tpot": _PERCENTILES, "states": _STATES}
_STATE_INTS = ("running_peak", "extra_p99", "extra_peak", "kept_peak")
_FLOATS = (
    "goodput",
    *(f"{kind}.{name}" for kind in ("ttft", "tpot") for name in _PERCENTILES),
    *(f"states.{name}" for name in _STATES if name not in _STATE_INTS),
)
_INTS = ("budget_bytes", *(f"states.{name}" for name in _STATE_INTS))


def to_rows(results: Sequence[RunResult]) -> list[dict[str, Any]]:
    """A flat dict for each result, all with the same keys; None where a result has no value."""
    causes = list(dict.fromkeys(cause for result in results for cause in result.losses))
    return [_row(fields, causes) for fields in to_objects(results)]


def _row(fields: dict[str, Any], causes: Sequence[str]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in fields.items():
        if name in _MANY:
            continue
        if name == "losses":
            row |= {f"losses.{cause}": value.get(cause, 0) for cause in causes}
        elif name in _NESTED:
            row |= {f"{name}.{part}": None if value is None else value[part] for part in _NESTED[name]}
        else:
            row[name] = " ".join(value) if name == "notes" else value
    return row


def write_csv(results: Sequence[RunResult], path: Path) -> None:
    """One line a result under a line of names; None is an empty field.

    Raises:
        InputError: the file can't be written.
    """
    rows = to_rows(results)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    save(path, text.getvalue().encode())


def write_parquet(results: Sequence[RunResult], path: Path) -> None:
    """The same rows in Parquet, with types.

    Raises:
        ConfigError: polars is not installed.
        InputError: the file can't be written.
    """
    try:
        import polars
    except ImportError:
        raise ConfigError(
            "A Parquet file needs polars, which is not installed. Run `pip install 'milepost[simulate]'`, "
            "or write CSV or JSON."
        ) from None
    # Columns in which every value may be None keep their type all the same.
    types: dict[str, Any] = dict.fromkeys(_FLOATS, polars.Float64) | dict.fromkeys(_INTS, polars.Int64)
    rows = to_rows(results)
    used = {name: kind for name, kind in types.items() if rows and name in rows[0]}
    frame = polars.DataFrame(rows, schema_overrides=used, infer_schema_length=None)
    content = io.BytesIO()
    frame.write_parquet(content)
    save(path, content.getvalue())
