"""Which call each tool's message answers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter

from milepost.chat.messages import Message, Role, ToolCall
from milepost.errors import RequestError

__all__ = ["in_call_order"]


def in_call_order(messages: Sequence[Message]) -> Iterator[tuple[str, Message, ToolCall | None, int]]:
    """The messages, with each run of tool results in the order of the calls that they answer.

    Yields:
        (path, message, the call that it answers, which of the results it is from 1); the last two are None
        and 0 for what is no result.

    Raises:
        RequestError: a result answers no call.
    """
    calls: tuple[ToolCall, ...] = ()
    answered = 0
    for is_results, run in groupby(enumerate(messages), lambda entry: entry[1].role is Role.TOOL):
        if is_results:
            results: list[tuple[int, str, Message]] = []
            for i, message in run:
                path = f"messages[{i}]"
                results.append((_call_position(message, path, calls, answered + len(results)), path, message))
            for position, path, message in sorted(results, key=itemgetter(0)):
                answered += 1
                yield path, message, calls[position], answered
        else:
            for i, message in run:
                if message.role is Role.ASSISTANT:
                    calls, answered = message.tool_calls, 0
                yield f"messages[{i}]", message, None, 0


def _call_position(message: Message, path: str, calls: Sequence[ToolCall], by_order: int) -> int:
    """Which of `calls` a tool result answers: by its id, or by its place when it gives none."""
    field = f"{path}.tool_call_id"
    if message.tool_call_id is None:
        if by_order < len(calls):
            return by_order
        raise RequestError(f"{field} is missing, and no unanswered tool call comes before it.", param=field)
    for position, call in enumerate(calls):
        if call.id == message.tool_call_id:
            return position
    raise RequestError(
        f"{field} must be the id of a call of the assistant message before it. "
        f"Given: {message.tool_call_id!r}; known: {[call.id for call in calls]}.",
        param=field,
    )
