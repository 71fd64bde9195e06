"""Splits a reply of Kimi-Linear into its text and its calls.

    text [<section_begin> (<call_begin> functions.NAME:N <argument_begin> JSON <call_end>)* <section_end>]

No text is lost where the model strays from its form: what stands between calls is content.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

from milepost.chat.calls import CallLog
from milepost.chat.reply import ReleasedText, ReplyDelta
from milepost.types import FinishReason, RequestOutput

__all__ = ["ImReplyParser", "ToolMarkers"]

_ID = re.compile(r"(?:functions\.)?(.*?)(?::\d+)?\Z", re.DOTALL)


class ToolMarkers(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids of the markers around calls."""

    section_begin: int
    section_end: int
    call_begin: int
    argument_begin: int
    call_end: int


class ImReplyParser:
    """A `milepost.chat.reply.ReplyParser`; one reply each.

    Args:
        markers: the ids of the markers.
        token_bytes: bytes of a token.
    """

    def __init__(self, markers: ToolMarkers, token_bytes: Callable[[int], bytes]) -> None:
        self._markers = markers
        self._released = ReleasedText(token_bytes, msgspec.structs.astuple(markers))
        self._in_section = False
        self._header: list[str] | None = None  # text since <|tool_call_begin|>
        self._in_arguments = False
        self._wrote_arguments = False
        self._space = ""  # between calls, held back until text follows
        self._ids: set[str] = set()
        self._content: list[str] = []
        self._calls = CallLog()

    def feed(self, output: RequestOutput) -> ReplyDelta:
        """Take the next output; returns what it adds to the reply."""
        for item in self._released.feed(output):
            if isinstance(item, str):
                self._take_text(item)
            else:
                self._take_marker(item)
        if output.finish_reason is FinishReason.STOP and not isinstance(output.stop_reason, str):
            self._end_call()
        delta = ReplyDelta(
            content="".join(self._content),
            tool_calls=self._calls.take(),
            cut_call=output.finished and self._in_arguments,
        )
        self._content = []
        return delta

    def _take_text(self, text: str) -> None:
        if self._header is not None:
            self._header.append(text)
        elif self._in_arguments:
            self._calls.add(text)
            self._wrote_arguments = True
        elif self._in_section:
            # Space between calls is their layout; anything else there is shown.
            text = self._space + text
            self._space = "" if text.strip() else text
            self._content.append("" if self._space else text)
        else:
            self._content.append(text)

    def _take_marker(self, token_id: int) -> None:
        self._space = ""
        if token_id == self._markers.argument_begin:
            if self._header is not None:
                self._begin_call()
            return
        self._end_call()
        self._in_section = token_id != self._markers.section_end
        if token_id == self._markers.call_begin:
            self._header = []

    def _begin_call(self) -> None:
        header = "".join(self._header or ()).strip()
        self._header = None
        self._in_arguments, self._wrote_arguments = True, False
        found = _ID.match(header)
        fresh = header if header and header not in self._ids else None
        self._ids.add(header)
        self._calls.start(found[1] if found else header, fresh)

    def _end_call(self) -> None:
        """End the call that is open, also one without arguments."""
        if self._header is not None:
            self._begin_call()
        if self._in_arguments and not self._wrote_arguments:
            self._calls.add("{}")
        self._in_arguments = False
