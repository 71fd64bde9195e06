"""Chat messages: from the plain dicts of an OpenAI-style request to checked structs.

Every error is a `RequestError` whose ``param`` is the path of the field at fault, such as
``messages[1].content[0].type``. A field that is not known is an error unless it is null or an
empty list, which is how clients echo the fields that a reply left unused.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from milepost.errors import RequestError

__all__ = ["Message", "Role", "ToolCall", "parse_messages", "parse_tools"]


class Role(enum.Enum):
    """Who speaks. The wire's "developer" is SYSTEM."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a function by the model; ``arguments`` is JSON text, as OpenAI has it."""

    id: str
    name: str
    arguments: str


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One checked message.

    Attributes:
        role: who speaks.
        parts: the text parts of its content, in order.
        name: the speaker's name, or None.
        reasoning: an assistant's earlier reasoning, or None.
        tool_calls: an assistant's calls.
        tool_call_id: which call a tool's message answers, or None.
    """

    role: Role
    parts: tuple[str, ...] = ()
    name: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None


_ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM}
_FIELDS = {
    Role.SYSTEM: {"role", "content", "name"},
    Role.USER: {"role", "content", "name"},
    Role.ASSISTANT: {"role", "content", "name", "reasoning_content", "reasoning", "tool_calls"},
    Role.TOOL: {"role", "content", "name", "tool_call_id"},
}


def parse_messages(messages: Sequence[Mapping[str, Any]]) -> tuple[Message, ...]:
    """Check and convert the ``messages`` of a request.

    Raises:
        RequestError: the first thing that is wrong, with its path.
    """
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        raise _error("messages", f"must be a list of messages. Given: {_kind(messages)}.")
    if not messages:
        raise _error("messages", "must hold at least one message. Given: an empty list.")
    return tuple(_parse_message(message, f"messages[{i}]") for i, message in enumerate(messages))


def parse_tools(tools: Sequence[Mapping[str, Any]] | None) -> tuple[Mapping[str, Any], ...]:
    """Check the ``tools`` of a request: functions with a name; the rest of a tool is passed on as it is.

    Raises:
        RequestError: the first thing that is wrong, with its path.
    """
    if tools is None:
        return ()
    if isinstance(tools, str | bytes | Mapping) or not isinstance(tools, Sequence):
        raise _error("tools", f"must be a list of tools. Given: {_kind(tools)}.")
    for i, tool in enumerate(tools):
        path = f"tools[{i}]"
        if not isinstance(tool, Mapping):
            raise _error(path, f"must be an object. Given: {_kind(tool)}.")
        if tool.get("type") != "function":
            raise _error(f"{path}.type", f'must be "function". Given: {tool.get("type")!r}.')
        function = tool.get("function")
        if not isinstance(function, Mapping):
            raise _error(f"{path}.function", f"must be an object. Given: {_kind(function)}.")
        _string(function.get("name"), f"{path}.function.name", empty=False)
    return tuple(tools)


def _parse_message(message: object, path: str) -> Message:
    if not isinstance(message, Mapping):
        raise _error(path, f"must be an object with role and content. Given: {_kind(message)}.")
    role = _ROLES.get(message.get("role")) if isinstance(message.get("role"), str) else None  # type: ignore[arg-type]
    if role is None:
        raise _error(
            f"{path}.role", f"must be one of {', '.join(sorted(_ROLES))}. Given: {message.get('role')!r}."
        )
    _refuse_unknown(message, _FIELDS[role], path)
    calls = message.get("tool_calls")
    optional = role is Role.ASSISTANT
    return Message(
        role=role,
        parts=_parse_content(message.get("content"), f"{path}.content", optional=optional),
        name=_optional_string(message.get("name"), f"{path}.name"),
        reasoning=_reasoning(message, path),
        tool_calls=() if calls is None else _parse_calls(calls, f"{path}.tool_calls"),
        tool_call_id=_optional_string(message.get("tool_call_id"), f"{path}.tool_call_id"),
    )


def _parse_content(content: object, path: str, *, optional: bool) -> tuple[str, ...]:
    if isinstance(content, str):
        return (content,)
    if content is None and optional:
        return ()
    if isinstance(content, bytes | Mapping) or not isinstance(content, Sequence):
        raise _error(path, f"must be a string or a list of text parts. Given: {_kind(content)}.")
    return tuple(_parse_part(part, f"{path}[{i}]") for i, part in enumerate(content))


def _parse_part(part: object, path: str) -> str:
    if not isinstance(part, Mapping):
        raise _error(path, f'must be an object like {{"type": "text", "text": ...}}. Given: {_kind(part)}.')
    if part.get("type") != "text":
        raise _error(f"{path}.type", f'must be "text"; only text can be read. Given: {part.get("type")!r}.')
    _refuse_unknown(part, {"type", "text"}, path)
    return _string(part.get("text"), f"{path}.text")


def _reasoning(message: Mapping[str, Any], path: str) -> str | None:
    own, other = (
        _optional_string(message.get(field), f"{path}.{field}")
        for field in ("reasoning_content", "reasoning")
    )
    return own or other


def _parse_calls(calls: object, path: str) -> tuple[ToolCall, ...]:
    if isinstance(calls, str | bytes | Mapping) or not isinstance(calls, Sequence):
        raise _error(path, f"must be a list of calls. Given: {_kind(calls)}.")
    return tuple(_parse_call(call, f"{path}[{i}]") for i, call in enumerate(calls))


def _parse_call(call: object, path: str) -> ToolCall:
    if not isinstance(call, Mapping):
        raise _error(path, f"must be an object. Given: {_kind(call)}.")
    if call.get("type", "function") != "function":
        raise _error(f"{path}.type", f'must be "function". Given: {call.get("type")!r}.')
    function = call.get("function")
    if not isinstance(function, Mapping):
        raise _error(f"{path}.function", f"must be an object. Given: {_kind(function)}.")
    arguments = function.get("arguments")
    if isinstance(arguments, Mapping):
        try:
            arguments = json.dumps(arguments, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            field = f"{path}.function.arguments"
            raise _error(field, f"must hold JSON values only ({error}).") from None
    return ToolCall(
        id=_optional_string(call.get("id"), f"{path}.id") or "",
        name=_string(function.get("name"), f"{path}.function.name", empty=False),
        arguments=_optional_string(arguments, f"{path}.function.arguments") or "",
    )


def _refuse_unknown(given: Mapping[str, Any], known: set[str], path: str) -> None:
    for field, value in given.items():
        if field not in known and value is not None and value != []:
            raise _error(f"{path}.{field}", f"is not supported here; known are {', '.join(sorted(known))}.")


def _optional_string(value: object, path: str) -> str | None:
    return None if value is None else _string(value, path)


def _string(value: object, path: str, *, empty: bool = True) -> str:
    if not isinstance(value, str):
        raise _error(path, f"must be a string. Given: {_kind(value)}.")
    if not value and not empty:
        raise _error(path, "must not be empty.")
    return value


def _kind(value: object) -> str:
    """What a JSON value is, in JSON's words."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, int | float):
        return "a number"
    if isinstance(value, str | bytes):
        return "a string"
    return "an object" if isinstance(value, Mapping) else "a list"


def _error(path: str, what: str) -> RequestError:
    return RequestError(f"{path} {what}", param=path)
