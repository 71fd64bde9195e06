"""Logs of chats in OpenAI's form, written as the model sees them: message ends are known.

    {"timestamp": 1732406946.1, "messages": [{"role": "user", "content": "Hi"}], "response": "Hello."}

A request may lie in "request" or "body", as in files of OpenAI's batch interface. Of the answer, its text
("response" or "output"), its message or OpenAI's whole object are read; without one, the length in "usage",
"output_length" or "output_tokens".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from milepost.errors import RequestError, TraceError
from milepost.sim.traces.draft import Draft
from milepost.sim.traces.fields import brief, input_tokens, output_tokens
from milepost.sim.traces.rows import Rows
from milepost.sim.traces.token_ids import Arrivals
from milepost.sim.traces.trace import TraceRequest

__all__ = ["EncodeChat", "read_chat_logs"]

_WRAPPERS = ("request", "body")
_TIMES = ("arrival", "arrival_time", "timestamp", "created", "created_at")
_SESSIONS = ("session", "session_id", "conversation_id")
_NAMES = ("request_id", "custom_id", "id")


class EncodeChat(Protocol):
    """Writes a conversation as a model's prompt."""

    def __call__(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """(token ids with the prefix of the reply, positions at which messages end).

        Raises:
            RequestError: something can't be written.
        """
        ...


def read_chat_logs(rows: Rows, encode: EncodeChat) -> Draft:
    """Read all rows and write their messages with `encode`.

    Raises:
        TraceError: a bad row.
    """
    reader = _Reader(encode)
    rows.each(msgspec.json.Decoder(dict[str, Any]), reader.take)
    draft = reader.draft
    draft.notes += reader.arrivals.notes
    if reader.num_guessed:
        draft.notes.append(
            f"Of {reader.num_guessed:,} requests neither the answer nor its length is known: each draws one "
            "token."
        )
    return draft


class _Reader:
    def __init__(self, encode: EncodeChat) -> None:
        self.draft = Draft(1)
        self.arrivals = Arrivals()
        self.num_guessed = 0
        self._encode = encode
        self._known: set[str] = set()

    def take(self, row: dict[str, Any]) -> None:
        draft, place = self.draft, len(self.draft.requests)
        request = next((row[name] for name in _WRAPPERS if isinstance(row.get(name), dict)), row)
        both = request | row
        messages, tools = request.get("messages"), request.get("tools") or None
        if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
            raise TraceError(f"messages must be a list of messages. Given: {brief(messages)}")
        prompt, ends = self._write(messages, tools)
        input_tokens("the tokens of messages", len(prompt))
        length, output = self._answer(both, messages, tools, prompt)
        name = str(_first(both, _NAMES, place))
        if name in self._known:
            raise TraceError(f"a request's id must be its own. Given: {brief(name)}, a second time")
        arrival = self.arrivals.next(place, {time: both.get(time) for time in _TIMES})
        self._known.add(name)
        session = _first(both, _SESSIONS, "")
        if not isinstance(session, str | int):
            raise TraceError(f"a session must be a name or a number. Given: {brief(session)}")
        self.num_guessed += length is None
        draft.requests.append(
            TraceRequest(
                request_id=name,
                arrival=arrival,
                prompt=prompt,
                num_output=1 if length is None else draft.drawn(length),
                output_ids=output,
                message_ends=ends,
                session=str(session),
                turn=draft.next_turn(str(session)),
            )
        )

    def _write(self, messages: list[Any], tools: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:  # noqa: ANN401
        try:
            return self._encode(messages, tools)
        except RequestError as error:
            raise TraceError(f"the messages can't be written: {error}") from None

    def _answer(
        self,
        row: Mapping[str, Any],
        messages: list[Any],
        tools: Any,  # noqa: ANN401 - what stands in the row
        prompt: tuple[int, ...],
    ) -> tuple[int | None, tuple[int, ...]]:
        """(tokens of the answer, None when unknown; what they were, as far as that can be told)."""
        said = _said_length(row)
        message = _message(row)
        if message is None:
            return said, ()
        # The next turn's prompt tells how the answer is written.
        after, ends = self._write([*messages, message], tools)
        if after[: len(prompt)] == prompt and ends and ends[-1] > len(prompt):
            output = after[len(prompt) : ends[-1]]
            return len(output), output
        return (said if said is not None else max(0, (ends[-1] if ends else len(after)) - len(prompt))), ()


def _message(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """The assistant's message of an answer in any of its forms."""
    answer = next((row[name] for name in ("response", "output") if row.get(name) is not None), None)
    if answer is None and "choices" in row:
        answer = {"choices": row["choices"]}
    if isinstance(answer, dict) and isinstance(answer.get("body"), dict):
        answer = answer["body"]
    if isinstance(answer, dict) and isinstance(answer.get("choices"), list):
        choice = answer["choices"][0] if answer["choices"] else None
        answer = choice.get("message") if isinstance(choice, dict) else None
    if isinstance(answer, str):
        return {"role": "assistant", "content": answer}
    if isinstance(answer, dict) and ("content" in answer or "tool_calls" in answer):
        kept = ("content", "reasoning_content", "reasoning", "tool_calls")
        return {"role": "assistant"} | {name: answer[name] for name in kept if answer.get(name) is not None}
    if answer is None:
        return None
    raise TraceError(f"the answer must be text, a message, or an object with choices. Given: {brief(answer)}")


def _said_length(row: Mapping[str, Any]) -> int | None:
    """Tokens of the answer as the row says."""
    for place in (row, row.get("response"), row.get("output")):
        usage = place.get("usage") if isinstance(place, dict) else None
        if isinstance(usage, dict) and usage.get("completion_tokens") is not None:
            return _whole("usage.completion_tokens", usage["completion_tokens"])
    for name in ("output_length", "output_tokens"):
        if row.get(name) is not None:
            return _whole(name, row[name])
    return None


def _whole(name: str, value: object) -> int:
    if type(value) is not int:
        raise TraceError(f"{name} must be a whole number. Given: {brief(value)}")
    return output_tokens(name, value)


def _first(row: Mapping[str, Any], names: Sequence[str], default: object) -> object:
    return next((row[name] for name in names if row.get(name) is not None), default)
