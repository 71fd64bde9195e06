"""Splits Kimi K3's reply into reasoning, content and tool calls.

The reply continues the generation prefix, so it starts inside a channel:

    [think text <close>think<sep> <open>response<sep>] text <close>response<sep>
    [<open>tools<sep> calls <close>tools<sep>] <close>message<sep> <end_of_msg>

No text is lost where the model strays from its form: what stands outside every known channel is content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

import msgspec

from milepost.chat.calls import CallLog
from milepost.chat.reply import ReleasedText, ReplyDelta
from milepost.chat.text_pieces import without_surrogates
from milepost.types import FinishReason, RequestOutput

__all__ = ["XtmlMarkers", "XtmlReplyParser"]

_ATTRIBUTE = re.compile(r'([\w-]+)="([^"]*)"')
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_JSON_SPACE = " \t\n\r"


class XtmlMarkers(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids of XTML's four markers."""

    open: int
    close: int
    sep: int
    end: int


class _Tag(msgspec.Struct, frozen=True):
    name: str
    attributes: dict[str, str]


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
        self._call: _CallWriter | None = None
        self._space = ""  # between the elements of the tools channel, held back until text follows
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls = CallLog()
        self._thinks = channel == "think"

    def feed(self, output: RequestOutput) -> ReplyDelta:
        """Take the next output; returns what it adds to the reply."""
        for item in self._released.feed(output):
            if isinstance(item, str):
                self._take_text(item)
            else:
                self._take_marker(item)
        cut = output.finished and self._finish(output)
        delta = ReplyDelta(
            content="".join(self._content),
            reasoning="".join(self._reasoning),
            tool_calls=self._calls.take(),
            reasoning_tokens=self._count_reasoning(output),
            cut_call=cut,
        )
        self._content, self._reasoning = [], []
        return delta

    def _count_reasoning(self, output: RequestOutput) -> int:
        """Tokens of the think channel, which the first closing marker ends; text may lag behind them."""
        if not self._thinks:
            return 0
        for count, token_id in enumerate(output.token_ids):
            if token_id == self._markers.close:
                self._thinks = False
                return count
        return len(output.token_ids)

    def _finish(self, output: RequestOutput) -> bool:
        """End what is open; returns whether that cuts a call off."""
        if self._call is None:
            return False
        if output.finish_reason is FinishReason.STOP and not isinstance(output.stop_reason, str):
            self._close_tag("message")  # the end of the message closes what it holds
            return False
        self._call.cut()
        return True

    def _take_text(self, text: str) -> None:
        if self._header is not None:
            self._header.append(text)
            return
        tag = self._open_tags[-1].name if self._open_tags else ""
        if tag == "think":
            self._reasoning.append(text)
        elif tag in ("argument", "json") and self._call is not None:
            self._call.write(text)
        elif tag in ("tools", "call"):
            self._take_stray(text)
        else:
            self._content.append(text)

    def _take_stray(self, text: str) -> None:
        """Space between elements is their layout; anything else there is shown."""
        text = self._space + text
        self._space = "" if text.strip() else text
        self._content.append("" if self._space else text)

    def _take_marker(self, token_id: int) -> None:
        self._space = ""
        header, self._header = self._header, None
        if token_id == self._markers.sep:
            if header is not None:
                self._take_tag("".join(header))
            return
        if header is not None:  # a tag that never was one
            self._take_text("".join(header))
        if token_id in (self._markers.open, self._markers.close):
            self._header = []
            self._closing = token_id == self._markers.close

    def _take_tag(self, header: str) -> None:
        if self._closing:
            self._close_tag(header.strip())
        else:
            self._open_tag(_parse_header(header))

    def _open_tag(self, tag: _Tag) -> None:
        if tag.name == "call":
            self._close_tag("call")
            self._call = _CallWriter(self._calls, tag.attributes.get("tool", ""))
        elif tag.name in ("argument", "json") and self._call is not None:
            while self._open_tags[-1].name != "call":  # one that was left open
                self._open_tags.pop()
            self._call.close()
            self._call.open(tag)
        self._open_tags.append(tag)

    def _close_tag(self, name: str) -> None:
        """Close `name` and whatever was left open inside it; a tag that isn't open is ignored."""
        if name not in [tag.name for tag in self._open_tags]:
            return
        while self._open_tags:
            tag = self._open_tags.pop()
            if self._call is not None and tag.name in ("argument", "json"):
                self._call.close()
            elif self._call is not None and tag.name == "call":
                self._call.end()
                self._call = None
            if tag.name == name:
                return


class _CallWriter:
    """Writes one call's arguments as the JSON text that OpenAI has, while they arrive.

    A string is written on as it comes. Any other value is a JSON literal, which can only be judged, and
    so written, when it is whole.
    """

    def __init__(self, log: CallLog, name: str) -> None:
        log.start(name)
        self._log = log
        self._kind: str | None = None  # of the element that is open
        self._literal: list[str] = []
        self._written = False
        self._raw = False

    def open(self, tag: _Tag) -> None:
        """An argument begins, or the whole arguments as raw JSON text."""
        self._kind = "json" if tag.name == "json" else tag.attributes.get("type", "string")
        self._literal = []
        if tag.name == "json" and not self._written:
            self._raw = self._written = True
            return
        key = "" if tag.name == "json" else tag.attributes.get("key", "")
        self._kind = "string" if tag.name == "json" else self._kind
        self._log.add(f"{', ' if self._written else '{'}{_quoted(key)}: ")
        self._written = True
        if self._kind == "string":
            self._log.add('"')

    def write(self, text: str) -> None:
        """The next text of the open element."""
        if self._kind == "json":
            self._log.add(text)
        elif self._kind == "string":
            self._log.add(_quoted(text)[1:-1])
        elif self._kind is not None:
            self._literal.append(text)

    def close(self) -> None:
        """The open element ends."""
        if self._kind == "string":
            self._log.add('"')
        elif self._kind not in (None, "json"):
            self._log.add(_json_literal("".join(self._literal)))
        self._kind = None

    def end(self) -> None:
        """The call ends."""
        self.close()
        if not self._written:
            self._log.add("{")
        if not self._raw:
            self._log.add("}")

    def cut(self) -> None:
        """The reply ends in the middle of the call: what there is of a literal is shown as it is."""
        if self._kind not in (None, "string", "json"):
            self._log.add("".join(self._literal).lstrip(_JSON_SPACE))
        self._kind = None


def _parse_header(header: str) -> _Tag:
    name, _, rest = header.partition(" ")
    return _Tag(name, {key: _unescape(value) for key, value in _ATTRIBUTE.findall(rest)})


def _unescape(value: str) -> str:
    return value.replace("&quot;", '"').replace("&amp;", "&")


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _json_literal(text: str) -> str:
    """An argument's value as it was written; one that isn't JSON is kept as its text."""
    text = text.strip(_JSON_SPACE)
    try:
        if _SURROGATE_ESCAPE.search(text):
            # A lone surrogate (backslash ud800) is no character, and readers of the reply may choke on it.
            value = json.loads(text, parse_constant=_refuse)
            return without_surrogates(json.dumps(value, ensure_ascii=False))
        json.loads(text, parse_int=str, parse_float=str, parse_constant=_refuse)
    except (ValueError, RecursionError):  # nested too deep to be read
        return _quoted(text)
    return text


def _refuse(constant: str) -> object:
    raise ValueError(f"{constant} is not JSON")
