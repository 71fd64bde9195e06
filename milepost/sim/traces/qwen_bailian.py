"""The form of Aliyun Bailian's traces of Qwen models: a request a line, an id for each 16 tokens.

    {"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, "output_length": 132,
     "type": "text", "turn": 2, "hash_ids": [1089, 1090, ..., 13148]}

Times are seconds. Each block of 16 tokens was hashed *by itself*: an id says nothing of what is before it.
So ids are chained on reading; taken as they are, they would overstate reuse.
Source: github.com/alibaba-edu/qwen-bailian-usagetraces-anon.
"""

from __future__ import annotations

import msgspec

from milepost.errors import TraceError
from milepost.sim.traces.block_tokens import BlockTokens
from milepost.sim.traces.chains import Chainer
from milepost.sim.traces.draft import Draft, lacks_last
from milepost.sim.traces.fields import brief, input_tokens, output_tokens, seconds
from milepost.sim.traces.rows import Rows
from milepost.sim.traces.trace import TraceRequest

__all__ = ["BLOCK_SIZE", "read_qwen_bailian"]

BLOCK_SIZE = 16
_NO_PARENT = -1


class _Row(msgspec.Struct):
    chat_id: int
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: list[int]
    parent_chat_id: int = _NO_PARENT
    turn: int = 1


def read_qwen_bailian(rows: Rows) -> Draft:
    """Read all rows and chain their ids.

    Raises:
        TraceError: a bad row.
    """
    reader = _Reader()
    rows.each(msgspec.json.Decoder(_Row), reader.take)
    reader.draft.notes.append(
        f"Each {BLOCK_SIZE} tokens were hashed by themselves; their ids were chained on reading, so that "
        "only equal prefixes count as equal."
    )
    return reader.draft


class _Reader:
    def __init__(self) -> None:
        self.draft = Draft(BLOCK_SIZE)
        self._chainer = Chainer()
        self._chats: dict[int, tuple[str, int]] = {}  # chat_id -> (session, turn)

    def take(self, row: _Row) -> None:
        draft = self.draft
        if row.chat_id in self._chats:
            raise TraceError(f"chat_id must be a request's own. Given: {brief(row.chat_id)}, a second time")
        if row.turn < 1:
            raise TraceError(f"turn must count from 1. Given: {brief(row.turn)}")
        arrival = seconds("timestamp", row.timestamp)
        num_prompt = input_tokens("input_length", row.input_length)
        num_output = output_tokens("output_length", row.output_length)
        lacking = lacks_last(len(row.hash_ids), num_prompt, BLOCK_SIZE)
        runs, _ = self._chainer.add(row.hash_ids)
        if lacking:
            fresh = self._chainer.take()
            runs.append(range(fresh, fresh + 1))
        session, turn = self._place(row)
        draft.requests.append(
            TraceRequest(
                request_id=str(row.chat_id),
                arrival=arrival,
                prompt=BlockTokens(runs, num_prompt, BLOCK_SIZE),
                num_output=draft.drawn(num_output),
                message_ends=(num_prompt,),
                session=session,
                turn=turn,
            )
        )

    def _place(self, row: _Row) -> tuple[str, int]:
        """Session and turn of a request; a session is called by the chat that began it, as far as known."""
        if row.parent_chat_id == _NO_PARENT:
            place = (str(row.chat_id), 0)
        elif row.parent_chat_id in self._chats:
            session, turn = self._chats[row.parent_chat_id]
            place = (session, turn + 1)
        else:  # it began before the trace did
            place = (str(row.parent_chat_id), row.turn - 1)
        self._chats[row.chat_id] = place
        return place
