"""Mooncake's form: a request a line, an id for each 512 tokens.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, ..., 2353]}

Times are milliseconds. Ids are chained, over the whole file; a last, partly filled block has an id, which
never comes back. Rows may also say "block_size" (tokens of an id, where it is not 512), "session_id" and
"turn", as `milepost.sim.traces.writing` does.
Source: github.com/kvcache-ai/Mooncake, FAST25-release/traces.
"""

from __future__ import annotations

import msgspec

from milepost.errors import TraceError
from milepost.sim.traces.draft import BlockNumbers, Draft
from milepost.sim.traces.fields import brief, input_tokens, output_tokens, seconds
from milepost.sim.traces.rows import Rows
from milepost.sim.traces.trace import TraceRequest

__all__ = ["BLOCK_SIZE", "MAX_BLOCK_SIZE", "read_mooncake"]

BLOCK_SIZE = 512
MAX_BLOCK_SIZE = 1 << 20


class _Row(msgspec.Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    block_size: int = BLOCK_SIZE
    session_id: str | int = ""
    turn: int | None = None


def read_mooncake(rows: Rows) -> Draft:
    """Read all rows.

    Raises:
        TraceError: a bad row.
    """
    reader = _Reader()
    rows.each(msgspec.json.Decoder(_Row), reader.take)
    return reader.draft


class _Reader:
    def __init__(self) -> None:
        self.draft = Draft(BLOCK_SIZE)
        self._numbers = BlockNumbers()

    def take(self, row: _Row) -> None:
        draft = self.draft
        if draft.requests and row.block_size != draft.block_size:
            raise TraceError(
                f"block_size must be the same in all rows, {draft.block_size}. Given: {brief(row.block_size)}"
            )
        _check_block_size(row.block_size)
        arrival = seconds("timestamp", row.timestamp, 1e3)
        num_prompt = input_tokens("input_length", row.input_length)
        num_output = output_tokens("output_length", row.output_length)
        if row.turn is not None and row.turn < 0:
            raise TraceError(f"turn must count from 0. Given: {brief(row.turn)}")
        prompt = self._numbers.prompt(row.hash_ids, num_prompt, row.block_size)
        draft.block_size = row.block_size
        session = str(row.session_id)
        turn = draft.next_turn(session)
        draft.requests.append(
            TraceRequest(
                request_id=str(len(draft.requests)),
                arrival=arrival,
                prompt=prompt,
                num_output=draft.drawn(num_output),
                message_ends=(num_prompt,),
                session=session,
                turn=turn if row.turn is None else row.turn,
            )
        )


def _check_block_size(block_size: int) -> None:
    if not 2 <= block_size <= MAX_BLOCK_SIZE:
        raise TraceError(
            f"block_size must be a number of tokens from 2 to {MAX_BLOCK_SIZE:,}. Given: {brief(block_size)}."
        )
