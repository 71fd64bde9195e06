"""Lengths only: Azure's LLM inference traces, and tables like them.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44

Of 2023, 2024 (with a zone in the times) and 2025 (multimodal, with a column of images, which are left out).
Columns are found by name, so those of BurstGPT ("Request tokens", "Response tokens") are read as well.
Nothing is known of what the tokens were, so nothing can be said about reuse.
Source: github.com/Azure/AzurePublicDataset.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence

from milepost.errors import TraceError
from milepost.sim.traces.block_tokens import BlockTokens
from milepost.sim.traces.draft import Draft
from milepost.sim.traces.fields import brief, input_tokens, output_tokens, timestamp
from milepost.sim.traces.rows import Rows
from milepost.sim.traces.trace import TraceRequest

__all__ = ["find_columns", "read_azure"]

_BLOCK_SIZE = 64
_NAMES = (
    ("timestamp", "arrival", "arrivaltime", "time"),
    ("contexttokens", "requesttokens", "inputtokens", "prompttokens", "inputlength"),
    ("generatedtokens", "responsetokens", "outputtokens", "completiontokens", "outputlength"),
)


class _Columns:
    """Where a table's three columns stand."""

    def __init__(self, header: Sequence[str], separator: str) -> None:
        names = ["".join(filter(str.isalpha, name.lower())) for name in header]
        found = [[names.index(name) for name in known if name in names] for known in _NAMES]
        self.known = all(found)
        self.separator = separator
        self.width = len(header)
        self.places = [places[0] for places in found] if self.known else []
        self.names = [header[place].strip() for place in self.places]


def find_columns(header: bytes) -> _Columns | None:
    """The columns of a table with this first row; None for a row that is not such a header."""
    text = header.decode("utf-8", "replace")
    for separator in (",", ";", "\t"):
        columns = _Columns(text.split(separator), separator)
        if columns.known:
            return columns
    return None


def read_azure(rows: Rows) -> Draft:
    """Read all rows.

    Raises:
        TraceError: a bad row.
    """
    reader = _Reader()
    rows.each_raw(reader.take)
    reader.draft.notes.append("The trace holds lengths only: it can't say anything about reuse.")
    return reader.draft


class _Reader:
    def __init__(self) -> None:
        self.draft = Draft(_BLOCK_SIZE, has_content=False)
        self._columns: _Columns | None = None
        self._next_id = 0

    def take(self, row: bytes) -> None:
        if self._columns is None:
            self._columns = find_columns(row)
            if self._columns is None:
                raise TraceError(
                    "the first row must name the columns, such as TIMESTAMP,ContextTokens,GeneratedTokens"
                )
            return
        draft, columns = self.draft, self._columns
        values = _values(row, columns.separator)
        if len(values) != columns.width:
            raise TraceError(f"there must be {columns.width} columns. Given: {len(values)}")
        time, context, generated = (values[place].strip() for place in columns.places)
        arrival = timestamp(columns.names[0], time)
        num_prompt = input_tokens(columns.names[1], _whole(columns.names[1], context))
        num_output = output_tokens(columns.names[2], _whole(columns.names[2], generated))
        blocks = -(-num_prompt // _BLOCK_SIZE)
        run = range(self._next_id, self._next_id + blocks)
        self._next_id = run.stop
        draft.requests.append(
            TraceRequest(
                request_id=str(len(draft.requests)),
                arrival=arrival,
                prompt=BlockTokens((run,), num_prompt, _BLOCK_SIZE),
                num_output=draft.drawn(num_output),
                message_ends=(num_prompt,),
            )
        )


def _values(row: bytes, separator: str) -> list[str]:
    try:
        return next(csv.reader([row.decode()], delimiter=separator), [])
    except csv.Error as error:
        raise TraceError(f"it is no row of a table ({error})") from None


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.removeprefix("-").isdecimal() or len(text) > 20:
        raise TraceError(f"{name} must be a whole number. Given: {brief(text)}")
    return int(text)
