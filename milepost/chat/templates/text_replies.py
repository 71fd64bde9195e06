"""Replies that mark their parts in text, as the models of many templates do.

Forms of them have names, which may be joined by ``+``: ``plain`` is text and nothing else; ``think-tags`` is
``<think>reasoning</think>`` before the content, its opening maybe in the prompt; ``hermes`` is
``<tool_call>{"name": ..., "arguments": {...}}</tool_call>`` for each call.

Parsers see characters, wherever the tokens end. What may be the start of a tag waits until it is known.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator

from milepost.chat.calls import CallLog
from milepost.chat.reply import ReleasedText, ReplyDelta
from milepost.chat.templates.json_values import JsonScanner
from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.types import FinishReason, RequestOutput

__all__ = [
    "CALL_CLOSE",
    "CALL_OPEN",
    "REPLY_FORMS",
    "THINK_CLOSE",
    "THINK_OPEN",
    "TextReplyParser",
    "parse_reply_form",
]

REPLY_FORMS = ("plain", "think-tags", "hermes")
THINK_OPEN, THINK_CLOSE = "<think>", "</think>"
CALL_OPEN, CALL_CLOSE = "<tool_call>", "</tool_call>"

# The usual beginning of a call, after which its arguments can be shown while they come.
_CALL_START = re.compile(
    r'\s*\{\s*"name"\s*:\s*("(?:[^"\\]|\\.)*")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_CALL_END = re.compile(r"\s*\}?\s*\Z")


def parse_reply_form(text: str) -> frozenset[str]:
    """The forms that a name such as ``think-tags+hermes`` joins.

    Raises:
        ConfigError: one is not known.
    """
    names = text.split("+")
    for name in names:
        if name not in REPLY_FORMS:
            raise ConfigError(one_of("reply_parser", name, REPLY_FORMS))
    return frozenset(names) - {"plain"}


class TextReplyParser:
    """A `milepost.chat.reply.ReplyParser`; one reply each.

    Args:
        forms: of `parse_reply_form`.
        token_bytes: bytes of a token.
        tags: the tags that are special tokens, by their ids: they have no text otherwise.
        thinking: whether the prompt opened the reasoning.
    """

    def __init__(
        self,
        forms: frozenset[str],
        token_bytes: Callable[[int], bytes],
        tags: dict[int, str],
        *,
        thinking: bool,
    ) -> None:
        self._tags = tags
        self._released = ReleasedText(token_bytes, tags)
        self._thinks = _Thinking(opened=thinking) if "think-tags" in forms else None
        self._calls = _Calls() if "hermes" in forms else None

    def feed(self, output: RequestOutput) -> ReplyDelta:
        """Take the next output; returns what it adds to the reply."""
        text = "".join(
            item if isinstance(item, str) else self._tags[item] for item in self._released.feed(output)
        )
        reasoning, content = ("", text) if self._thinks is None else self._thinks.feed(text)
        if output.finished and self._thinks is not None:
            late_reasoning, late_content = self._thinks.finish()
            reasoning, content = reasoning + late_reasoning, content + late_content
        if self._calls is None:
            return ReplyDelta(content=content, reasoning=reasoning)
        content = self._calls.feed(content)
        cut = output.finished and self._calls.in_arguments
        if output.finished:
            whole = output.finish_reason is FinishReason.STOP and not isinstance(output.stop_reason, str)
            content += self._calls.finish(whole=whole)
        calls = self._calls.log.take()
        return ReplyDelta(content=content, reasoning=reasoning, tool_calls=calls, cut_call=cut)


class _Thinking:
    """Tells reasoning from content."""

    def __init__(self, *, opened: bool) -> None:
        self._held = ""
        self._state = "reasoning" if opened else "start"

    def feed(self, text: str) -> tuple[str, str]:
        """(reasoning, content) that the next text adds."""
        self._held += text
        if self._state == "start":
            seen = self._held.lstrip()
            if THINK_OPEN.startswith(seen) and seen != THINK_OPEN:
                return "", ""
            if seen.startswith(THINK_OPEN):
                self._held, self._state = seen.removeprefix(THINK_OPEN), "reasoning"
            else:
                self._state = "content"
        reasoning = ""
        if self._state == "reasoning":
            reasoning, found, rest = _cut(self._held, THINK_CLOSE)
            self._held = rest
            if not found:
                return reasoning, ""
            self._state = "content"
        content, self._held = self._held, ""
        return reasoning, content

    def finish(self) -> tuple[str, str]:
        """What was held back at the end."""
        held, self._held = self._held, ""
        return (held, "") if self._state == "reasoning" else ("", held)


class _Calls:
    """Tells calls from content."""

    def __init__(self) -> None:
        self.log = CallLog()
        self._held = ""
        self._state = "content"
        self._scanner = JsonScanner()
        self._called = False
        self._space: str | None = ""  # before the content, or between calls: shown once text follows

    @property
    def in_arguments(self) -> bool:
        """Whether a call's arguments have begun and not ended."""
        return self._state == "arguments"

    def feed(self, text: str) -> str:
        """The content that the next text adds; calls go to the log."""
        self._held += text
        content: list[str] = []
        steps: dict[str, Callable[[], Iterator[str]]] = {
            "content": self._in_content,
            "call": self._in_call,
            "arguments": self._in_arguments,
            "after": self._after_arguments,
        }
        before = None
        while before != (self._state, len(self._held)):
            before = (self._state, len(self._held))
            content.extend(steps[self._state]())
        return "".join(content)

    def finish(self, *, whole: bool) -> str:
        """The content that was held back; `whole` is whether the reply was not cut off."""
        held, self._held = self._held, ""
        state, self._state = self._state, "content"
        if state == "call":
            return "" if whole and self._take_whole(held) else self._shown(CALL_OPEN + held)
        if state == "after" and _CALL_END.match(_cut(held, CALL_CLOSE)[0]):
            return ""
        shown = self._shown(held)
        # A reply of nothing but space is that space; behind a call it is layout.
        return shown if self._called or self._space is None else shown + self._space

    def _in_content(self) -> Iterator[str]:
        text, found, self._held = _cut(self._held, CALL_OPEN)
        yield self._shown(text)
        if found:
            self._state = "call"

    def _in_call(self) -> Iterator[str]:
        start = _CALL_START.match(self._held)
        name = _json_string(start[1]) if start else None
        end = self._held.find(CALL_CLOSE)
        if start and name is not None and (end < 0 or start.end() <= end):
            self._start(name)
            self._held = self._held[start.end() :]
            self._scanner = JsonScanner()
            self._state = "arguments"
        elif end >= 0:
            block, self._held = self._held[:end], self._held[end + len(CALL_CLOSE) :]
            self._state = "content"
            if not self._take_whole(block):
                yield self._shown(f"{CALL_OPEN}{block}{CALL_CLOSE}")

    def _in_arguments(self) -> Iterator[str]:
        taken = self._scanner.take(self._held)
        self.log.add(self._held[:taken])
        self._held = self._held[taken:]
        if self._scanner.ended:
            self._state = "after"
        yield ""

    def _after_arguments(self) -> Iterator[str]:
        end = self._held.find(CALL_CLOSE)
        if end < 0:
            return
        rest, self._held = self._held[:end], self._held[end + len(CALL_CLOSE) :]
        self._state = "content"
        if not _CALL_END.match(rest):
            yield self._shown(rest)

    def _start(self, name: str) -> None:
        self.log.start(name)
        self._called, self._space = True, ""

    def _shown(self, text: str) -> str:
        """What can be shown of the next content."""
        if self._space is None:
            return text
        text = self._space + text
        self._space = None if text.strip() else text
        return text if self._space is None else ""

    def _take_whole(self, block: str) -> bool:
        """Take a call that is written in an unusual way; returns whether it is one."""
        try:
            call = json.loads(block)
        except (ValueError, RecursionError):  # nested too deep to be read
            return False
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return False
        arguments = call.get("arguments", call.get("parameters", {}))
        self._start(call["name"])
        self.log.add(arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False))
        return True


def _cut(text: str, tag: str) -> tuple[str, bool, str]:
    """(text before the tag, whether it is there, what follows it or may be its start)."""
    before, found, after = text.partition(tag)
    if found:
        return before, True, after
    for length in range(min(len(tag) - 1, len(text)), 0, -1):
        if tag.startswith(text[-length:]):
            return text[:-length], False, text[-length:]
    return text, False, ""


def _json_string(text: str) -> str | None:
    try:
        return str(json.loads(text))
    except ValueError:
        return None
