"""Writes Kimi K3's form: tags, messages, earlier replies with their calls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from milepost.chat.argument_schemas import json_type
from milepost.chat.encoding import TokenWriter
from milepost.chat.messages import Message, ToolCall
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.xtml_reply import XtmlMarkers
from milepost.errors import RequestError

__all__ = ["XtmlWriter", "escaped", "sorted_json"]

_DECODER = json.JSONDecoder()
_JSON_SPACE = " \t\n\r"


class XtmlWriter(TokenWriter):
    """Writes tags and whole messages."""

    def __init__(self, tokenizer: Tokenizer, markers: XtmlMarkers) -> None:
        super().__init__(tokenizer)
        self._markers = markers

    def open(self, tag: str, **attributes: str) -> None:
        """``<|open|>tag key="value"<|sep|>``."""
        self.marker(self._markers.open)
        self.text(tag)
        for key, value in attributes.items():
            for piece in (f" {key}", '="', escaped(value), '"'):
                self.text(piece)
        self.marker(self._markers.sep)

    def close(self, tag: str) -> None:
        """``<|close|>tag<|sep|>``."""
        self.marker(self._markers.close)
        self.text(tag)
        self.marker(self._markers.sep)

    def element(self, tag: str, text: str, **attributes: str) -> None:
        """An element that holds nothing but text."""
        self.open(tag, **attributes)
        self.text(text)
        self.close(tag)

    def end(self, *, lasting: bool = True) -> None:
        """Close the message and end it; one that is not `lasting` is elsewhere in the next turn, or gone."""
        self.close("message")
        self.marker(self._markers.end)
        if lasting:
            self.end_message()

    def message(self, parts: Sequence[str], **attributes: str) -> None:
        """A message that holds nothing but text; each part is tokenised on its own."""
        self.open("message", **attributes)
        for part in parts:
            self.text(part)
        self.end()

    def system(self, kind: str, text: str, *, lasting: bool = True) -> None:
        """A system message of Milepost's own making."""
        self.open("message", role="system", type=kind)
        self.text(text)
        self.end(lasting=lasting)

    def spoken(self, message: Message) -> None:
        """A system's or a user's message."""
        self.message(message.parts, **_role_attributes(message))

    def assistant(self, message: Message, path: str, *, thinking: bool) -> None:
        """An earlier reply.

        Raises:
            RequestError: a call's arguments are JSON but no object; `path` is the message's.
        """
        self.open("message", **_role_attributes(message))
        if thinking:
            reasoning = message.reasoning or ""
            self.element("think", reasoning if reasoning.strip() else "")
        self.open("response")
        for part in message.parts:
            self.text(part)
        self.close("response")
        if message.tool_calls:
            self.open("tools")
            for i, call in enumerate(message.tool_calls):
                self._call(call, i + 1, f"{path}.tool_calls[{i}].function.arguments")
            self.close("tools")
        self.end()

    def _call(self, call: ToolCall, index: int, path: str) -> None:
        self.open("call", tool=call.name, index=str(index))
        arguments = _arguments(call, path)
        if arguments is None:
            # What an earlier reply garbled is shown to the model as it was.
            self.element("json", call.arguments, type="object")
        else:
            for key, (value, literal) in arguments.items():
                text = value if isinstance(value, str) else literal
                self.element("argument", text, key=key, type=json_type(value))
        self.close("call")


def _role_attributes(message: Message) -> dict[str, str]:
    return {"role": message.role.value} | ({"name": message.name} if message.name else {})


def _arguments(call: ToolCall, path: str) -> dict[str, tuple[object, str]] | None:
    """A call's arguments, each with its literal as it was written; None when they are not JSON."""
    text = call.arguments.strip(_JSON_SPACE)
    if not text:
        return {}
    try:
        value = json.loads(text)
        literals = _literals(text) if isinstance(value, dict) else {}
    except (ValueError, RecursionError):  # nested too deep to be read
        return None
    if not isinstance(value, dict):
        raise RequestError(f"{path} must be a JSON object. Given: {call.arguments[:60]!r}.", param=path)
    return literals


def _literals(text: str) -> dict[str, tuple[object, str]]:
    """The values of a JSON object that was found sound, with their text: ``1e2`` stays ``1e2``."""
    found: dict[str, tuple[object, str]] = {}
    at = _skip(text, 1)
    while text[at] != "}":
        key, at = _DECODER.raw_decode(text, at)
        start = _skip(text, at)
        value, at = _DECODER.raw_decode(text, start)
        found[key] = (value, text[start:at])
        at = _skip(text, at)
    return found


def _skip(text: str, at: int) -> int:
    """The position of the next key or value."""
    while text[at] in " \t\n\r:,":
        at += 1
    return at


def escaped(value: str) -> str:
    """An attribute's value: & first, then the quote."""
    return value.replace("&", "&amp;").replace('"', "&quot;")


def sorted_json(value: Sequence[Any] | Mapping[str, Any], path: str) -> str:
    """Compact JSON with sorted keys, as Moonshot's renderer declares tools and schemas.

    Raises:
        RequestError: it holds more than JSON values; `path` is the field's.
    """
    try:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise RequestError(f"{path} must hold JSON values only ({error}).", param=path) from None
