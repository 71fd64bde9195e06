"""Splits Kimi K3's reply into reasoning, content and tool calls.

The reply continues the generation prefix, so it starts inside a channel:

    [think text <close>think<sep> <open>response<sep>] text <close>response<sep>
    [<open>tools<sep> calls <close>tools<sep>] <close>message<sep> <end_of_msg>

Text outside every known channel (the model strays from its form) is shown as content rather than lost.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable

import msgspec

from milepost.chat.messages import ToolCall
from milepost.chat.reply import ReleasedText, ReplyDelta
from milepost.chat.text_pieces import without_surrogates
from milepost.types import RequestOutput

__all__ = ["XtmlMarkers", "XtmlReplyParser"]

_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
_TOOL_TAGS = frozenset({"tools", "call", "argument", "json"})


class XtmlMarkers(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids of XTML's four markers."""

    open: int
    close: int
    sep: int
    end: int


class _Tag(msgspec.Struct, frozen=True):
    name: str
    attributes: dict[str, str]


class _Call(msgspec.Struct):
    name: str
    arguments: dict[str, object]
    raw: str | None = None


class XtmlReplyParser:
    """A `milepost.chat.reply.ReplyParser`; one reply each.

    Args:
        markers: the ids of the markers.
        token_bytes: bytes of a token.
        channel: the channel that the generation prefix opened, "think" or "response".
    """

    def __init__(self, markers: XtmlMarkers, token_bytes: Callable[[int], bytes], channel: str) -> None:
        self._markers = markers
        self._released = ReleasedText(token_bytes, (markers.open, markers.close, markers.sep, markers.end))
        self._open_tags = [_Tag("message", {}), _Tag(channel, {})]
        self._header: list[str] | None = None  # text since <|open|> or <|close|>, until <|sep|>
        self._closing = False
        self._call: _Call | None = None
        self._value: list[str] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[ToolCall] = []

    def feed(self, output: RequestOutput) -> ReplyDelta:
        """Take the next output; returns what it adds to the reply."""
        for item in self._released.feed(output):
            if isinstance(item, str):
                self._take_text(item)
            else:
                self._take_marker(item)
        delta = ReplyDelta(
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(self._calls),
        )
        self._content, self._reasoning, self._calls = [], [], []
        return delta

    def _take_text(self, text: str) -> None:
        if self._header is not None:
            self._header.append(text)
            return
        tag = self._open_tags[-1].name if self._open_tags else ""
        if tag == "think":
            self._reasoning.append(text)
        elif tag in ("argument", "json"):
            self._value.append(text)
        elif tag not in _TOOL_TAGS:
            self._content.append(text)

    def _take_marker(self, token_id: int) -> None:
        if token_id == self._markers.sep and self._header is not None:
            header = "".join(self._header)
            self._header = None
            if self._closing:
                self._close_tag(header.strip())
            else:
                self._open_tag(_parse_header(header))
        elif token_id in (self._markers.open, self._markers.close):
            self._header = []
            self._closing = token_id == self._markers.close

    def _open_tag(self, tag: _Tag) -> None:
        self._open_tags.append(tag)
        if tag.name == "call":
            self._call = _Call(tag.attributes.get("tool", ""), {})
        elif tag.name in ("argument", "json"):
            self._value = []

    def _close_tag(self, name: str) -> None:
        """Close `name` and whatever was left open inside it; a tag that isn't open is ignored."""
        names = [tag.name for tag in self._open_tags]
        if name not in names:
            return
        while self._open_tags:
            tag = self._open_tags.pop()
            self._end_element(tag)
            if tag.name == name:
                return

    def _end_element(self, tag: _Tag) -> None:
        if self._call is None:
            return
        if tag.name == "argument":
            text, kind = "".join(self._value), tag.attributes.get("type", "string")
            self._call.arguments[tag.attributes.get("key", "")] = _typed(text, kind)
        elif tag.name == "json":
            self._call.raw = "".join(self._value)
        elif tag.name == "call":
            self._calls.append(_finished(self._call))
            self._call = None


def _parse_header(header: str) -> _Tag:
    name, _, rest = header.partition(" ")
    return _Tag(name, {key: _unescape(value) for key, value in _ATTRIBUTE.findall(rest)})


def _unescape(value: str) -> str:
    return value.replace("&quot;", '"').replace("&amp;", "&")


def _typed(text: str, kind: str) -> object:
    """An argument's value; one that isn't the JSON it claims to be is kept as its text."""
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # nested too deep to be read
        return text


def _finished(call: _Call) -> ToolCall:
    # The model may spell a lone surrogate (backslash ud800), which no reply can hold as a character.
    parsed = without_surrogates(json.dumps(call.arguments, ensure_ascii=False))
    arguments = call.raw if call.raw is not None else parsed
    return ToolCall(id=f"call_{uuid.uuid4().hex[:24]}", name=call.name, arguments=arguments)
