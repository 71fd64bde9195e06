"""Prompts as token ids, a request a line: our own form, and what logs of engines hold.

    {"arrival": 0.25, "prompt_token_ids": [5, 17, 3], "output_token_ids": [9, 2], "message_ends": [2],
     "session": "a", "request_id": "a-0"}

Only the prompt is needed. Other names of the same things are read too: `input_ids` or `prompt_ids`;
`output_ids`; `arrival_time`, `timestamp` or `created`; `output_length` or `output_tokens` where the ids of
the output are not kept; `session_id`; `rid` or `id`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from milepost.errors import TraceError
from milepost.sim.traces.draft import Draft
from milepost.sim.traces.fields import brief, input_tokens, output_tokens, timestamp
from milepost.sim.traces.rows import Rows
from milepost.sim.traces.trace import TraceRequest

__all__ = ["Arrivals", "read_token_ids"]

_MAX_TOKEN_ID = (1 << 31) - 1


class _Row(msgspec.Struct):
    prompt_token_ids: list[int] | None = None
    input_ids: list[int] | None = None
    prompt_ids: list[int] | None = None
    output_token_ids: list[int] | None = None
    output_ids: list[int] | None = None
    output_length: int | None = None
    output_tokens: int | None = None
    message_ends: list[int] = []
    arrival: float | str | None = None
    arrival_time: float | str | None = None
    timestamp: float | str | None = None
    created: float | str | None = None
    session: str | int | None = None
    session_id: str | int | None = None
    request_id: str | int | None = None
    rid: str | int | None = None
    id: str | int | None = None


class Arrivals:
    """Times of requests in a form whose rows need not have one: all of them have, or none."""

    def __init__(self) -> None:
        self._timed: bool | None = None

    def next(self, place: int, values: dict[str, object]) -> float:
        """Arrival of the request `place`, from the first of `values` that is there.

        Raises:
            TraceError: not a time, or not there though others have one.
        """
        name, value = next(((name, value) for name, value in values.items() if value is not None), ("", None))
        if self._timed not in (None, value is not None):
            raise TraceError(f"all requests must have a time ({', '.join(values)}), or none of them")
        arrival = float(place) if value is None else timestamp(name, value)
        self._timed = value is not None
        return arrival

    @property
    def notes(self) -> list[str]:
        """What a user of the times must know."""
        if self._timed is False:
            return ["The trace has no times: its requests arrive one a second, in the order of the file."]
        return []


def read_token_ids(rows: Rows) -> Draft:
    """Read all rows.

    Raises:
        TraceError: a bad row.
    """
    reader = _Reader()
    rows.each(msgspec.json.Decoder(_Row), reader.take)
    reader.draft.notes += reader.arrivals.notes
    return reader.draft


class _Reader:
    def __init__(self) -> None:
        self.draft = Draft(1)
        self.arrivals = Arrivals()
        self._known: set[str] = set()

    def take(self, row: _Row) -> None:
        draft = self.draft
        prompt = _ids("prompt_token_ids", row.prompt_token_ids, row.input_ids, row.prompt_ids)
        if row.prompt_token_ids is None and row.input_ids is None and row.prompt_ids is None:
            raise TraceError(
                "the row lacks prompt_token_ids (or input_ids, prompt_ids): is it of another form?"
            )
        input_tokens("the number of prompt_token_ids", len(prompt))
        output = _ids("output_token_ids", row.output_token_ids, row.output_ids)
        _check_ends(row.message_ends, len(prompt))
        name = _name(row, len(draft.requests))
        if name in self._known:
            raise TraceError(f"a request's id must be its own. Given: {brief(name)}, a second time")
        num_output = _output_length(row, len(output))
        arrival = self.arrivals.next(
            len(draft.requests),
            {
                "arrival": row.arrival,
                "arrival_time": row.arrival_time,
                "timestamp": row.timestamp,
                "created": row.created,
            },
        )
        self._known.add(name)
        session = row.session if row.session is not None else row.session_id
        session = "" if session is None else str(session)
        draft.requests.append(
            TraceRequest(
                request_id=name,
                arrival=arrival,
                prompt=prompt,
                num_output=draft.drawn(num_output),
                output_ids=output,
                message_ends=tuple(row.message_ends),
                session=session,
                turn=draft.next_turn(session),
            )
        )


def _ids(name: str, *given: list[int] | None) -> tuple[int, ...]:
    ids = next((ids for ids in given if ids is not None), [])
    if ids and not (min(ids) >= 0 and max(ids) <= _MAX_TOKEN_ID):
        wrong = next(token_id for token_id in ids if not 0 <= token_id <= _MAX_TOKEN_ID)
        raise TraceError(f"{name} must be token ids, from 0 to {_MAX_TOKEN_ID:,}. Given: {brief(wrong)}")
    return tuple(ids)


def _check_ends(ends: Sequence[int], num_prompt: int) -> None:
    if any(end <= before for before, end in zip([0, *ends], ends, strict=False)) or (
        ends and ends[-1] > num_prompt
    ):
        raise TraceError(
            f"message_ends must ascend from 1 to the prompt's {num_prompt} tokens at most. "
            f"Given: {brief(ends)}"
        )


def _output_length(row: _Row, num_ids: int) -> int:
    said = row.output_length if row.output_length is not None else row.output_tokens
    if said is None:
        return num_ids
    if num_ids and said != num_ids:
        raise TraceError(
            f"output_length must be the number of output_token_ids, {num_ids}. Given: {brief(said)}"
        )
    return output_tokens("output_length", said)


def _name(row: _Row, place: int) -> str:
    return str(next((name for name in (row.request_id, row.rid, row.id) if name is not None), place))
