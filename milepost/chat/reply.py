"""The reply's side of a chat encoding: what a user may see of the tokens that a model writes.

A parser is fed with the engine's `RequestOutput`s, which carry two views of the same tokens that don't
move in step: token ids, which tell the structure (markers are ids, never text), and released text,
which lags behind them (half a character, the start of a stop string) and ends before a stop string.
`ReleasedText` joins them: it decodes the ids itself into characters and markers, in order, and hands
them on as far as the engine's text has come.

The engine looks for stop strings in all text that the model writes, tag names included, since it knows
no chat form: with the stop string "think" a K3 reply ends where its thinking does.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Callable, Collection, Iterator
from typing import Protocol

import msgspec

from milepost.chat.calls import ToolCallDelta, collect_calls
from milepost.chat.messages import ToolCall
from milepost.types import FinishReason, RequestOutput

__all__ = ["PlainReplyParser", "ReleasedText", "Reply", "ReplyDelta", "ReplyParser", "collect_reply"]


class ReplyDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one `RequestOutput` adds to a reply.

    Attributes:
        content: of the reply, next.
        reasoning: that comes before the reply, next.
        tool_calls: what is added to calls.
        reasoning_tokens: how many of the output's tokens were drawn while the model thought; None where the
            form does not tell by tokens.
        cut_call: whether the reply ends in the middle of a call, which is then nothing to be called.
    """

    content: str = ""
    reasoning: str = ""
    tool_calls: tuple[ToolCallDelta, ...] = ()
    reasoning_tokens: int | None = None
    cut_call: bool = False

    def __bool__(self) -> bool:
        """Whether it adds anything."""
        return bool(self.content or self.reasoning or self.tool_calls)


class Reply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply; ``reasoning`` is None when the model had no thinking channel or left it empty."""

    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()


class ReplyParser(Protocol):
    """Splits one reply into its parts as it arrives."""

    def feed(self, output: RequestOutput) -> ReplyDelta:
        """Take the next output of the request; the last one flushes what is held back."""
        ...


class PlainReplyParser:
    """For encodings whose reply is nothing but text up to the end-of-message token."""

    def feed(self, output: RequestOutput) -> ReplyDelta:
        """The output's text is the content."""
        return ReplyDelta(content=output.text)


def collect_reply(deltas: Collection[ReplyDelta]) -> Reply:
    """Join the deltas of one reply."""
    return Reply(
        content="".join(delta.content for delta in deltas),
        reasoning="".join(delta.reasoning for delta in deltas) or None,
        tool_calls=collect_calls(call for delta in deltas for call in delta.tool_calls),
    )


def _shown(output: RequestOutput) -> tuple[int, ...]:
    """The tokens that are part of the reply: all but a stop token, which is none even if it has text."""
    if output.finish_reason is FinishReason.STOP and not isinstance(output.stop_reason, str):
        return output.token_ids[:-1]
    return output.token_ids


class ReleasedText:
    """Characters and markers of a token stream, in order, as far as the engine has released text.

    Args:
        token_bytes: bytes of a token; empty for special tokens.
        markers: the special tokens that are reported.
    """

    def __init__(self, token_bytes: Callable[[int], bytes], markers: Collection[int]) -> None:
        self._token_bytes = token_bytes
        self._markers = frozenset(markers)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._waiting: deque[str | int] = deque()
        self._budget = 0

    def feed(self, output: RequestOutput) -> Iterator[str | int]:
        """Yield what `output` releases: strings of ordinary text, and ids of markers."""
        for token_id in _shown(output):
            self._decode(token_id)
        self._budget += len(output.text)
        if output.finished and not isinstance(output.stop_reason, str):
            # Nothing was cut off by a stop string: all that was written may be seen.
            self._append(self._decoder.decode(b"", final=True))
            self._budget = sum(len(item) for item in self._waiting if isinstance(item, str))
        yield from self._release()

    def _decode(self, token_id: int) -> None:
        if token_id not in self._markers:
            self._append(self._decoder.decode(self._token_bytes(token_id)))
            return
        # A character that a marker tears apart ends before the marker.
        self._append(self._decoder.decode(b"", final=True))
        self._decoder.reset()
        self._waiting.append(token_id)

    def _append(self, text: str) -> None:
        if text:
            self._waiting.append(text)

    def _release(self) -> Iterator[str | int]:
        while self._waiting:
            item = self._waiting[0]
            if isinstance(item, str):
                if not self._budget:
                    return
                released, kept = item[: self._budget], item[self._budget :]
                self._budget -= len(released)
                self._waiting.popleft()
                if kept:
                    self._waiting.appendleft(kept)
                yield released
            else:
                self._waiting.popleft()
                yield item
