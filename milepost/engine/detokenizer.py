"""Tokens to text as they come: whole characters only, and never a part of a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol

from milepost.types import FinishReason

__all__ = ["Detokenizer", "StopMatcher", "TokenDecoder"]


class TokenDecoder(Protocol):
    """All that turning tokens into text needs of a tokenizer."""

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes that the token stands for; never raises, and safe from any thread.

        Empty for a special token that text must not show, and for an id that the tokenizer does not
        know: a model's vocabulary may be larger.
        """
        ...


class StopMatcher:
    """Finds stop strings in text that arrives in pieces, whatever the pieces' borders.

    The stop string that is complete first wins; of several that end with the same character the
    longest does. So the answer depends on the text alone, not on how it was cut.
    Each stop string keeps one number, how much of it the text ends with (Knuth, Morris and Pratt's
    automaton), so a character costs constant time however long the strings are.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        # Longest first, so that the first complete one found is the longest.
        self._stops = sorted(dict.fromkeys(stops), key=len, reverse=True)
        self._fallbacks = [_fallbacks(stop) for stop in self._stops]
        self._matched = [0] * len(self._stops)
        self._held = ""

    def push(self, text: str, *, may_stop: bool = True) -> tuple[str, str | None]:
        """Take more text.

        Args:
            text: what comes next.
            may_stop: False passes over the stop strings that are complete within it.

        Returns:
            the text that can't become part of a stop string any more, and the stop string if one is
            complete now: the text then ends before it, and nothing may be pushed afterwards.
        """
        if not self._stops:
            return text, None
        pending = self._held + text
        for index in range(len(self._held), len(pending)):
            stop = self._step(pending[index])
            if stop is not None and may_stop:
                self._held = ""
                return pending[: index + 1 - len(stop)], stop
        # One that was passed over is complete, and holds nothing back but what it may begin again with.
        cut = len(pending) - max(map(self._unfinished, range(len(self._stops))))
        self._held = pending[cut:]
        return pending[:cut], None

    def flush(self) -> str:
        """The text still held back; the end has come, so it is no stop string."""
        held, self._held = self._held, ""
        return held

    def _unfinished(self, which: int) -> int:
        """How much of a stop string the text ends with, short of all of it."""
        matched = self._matched[which]
        return self._fallbacks[which][matched] if matched == len(self._stops[which]) else matched

    def _step(self, char: str) -> str | None:
        """Let one character pass; the longest stop string that it completes."""
        complete: str | None = None
        for which, stop in enumerate(self._stops):
            matched = self._matched[which]
            if matched == len(stop):  # it was passed over
                matched = self._fallbacks[which][matched]
            while matched and stop[matched] != char:
                matched = self._fallbacks[which][matched]
            matched += stop[matched] == char
            self._matched[which] = matched
            if matched == len(stop) and complete is None:
                complete = stop
        return complete


class Detokenizer:
    """Text of one request's output.

    Bytes that are no UTF-8 become U+FFFD exactly as ``bytes.decode(errors="replace")`` has it, once
    they can't become a character any more. All pieces together are the whole text.

    Args:
        decoder: the tokenizer's side.
        stops: stop strings.
        min_tokens: stop strings that are complete within that many tokens stop nothing. One that begins in
            them and ends after them does. (vLLM does the same.)
    """

    def __init__(self, decoder: TokenDecoder, stops: tuple[str, ...] = (), *, min_tokens: int = 0) -> None:
        self._decoder = decoder
        self._early_tokens = min_tokens if stops else 0
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._matcher = StopMatcher(stops)

    def take(self, token_ids: Sequence[int], reason: FinishReason | None) -> tuple[str, str | None]:
        """Take one output's tokens, the last ones if there is a finish reason; returns what `push` does."""
        # A stop token ends the reply and is no part of its text.
        text, stop = self.push(token_ids[:-1] if reason is FinishReason.STOP else token_ids)
        if stop is None and reason is not None:
            rest, stop = self.flush()
            text += rest
        return text, stop

    def push(self, token_ids: Iterable[int]) -> tuple[str, str | None]:
        """Take tokens; returns the text to show now and the stop string that they complete, if any."""
        if self._early_tokens:
            return self._push_early(list(token_ids))
        data = b"".join(self._decoder.token_bytes(token_id) for token_id in token_ids)
        return self._matcher.push(self._utf8.decode(data))

    def _push_early(self, token_ids: list[int]) -> tuple[str, str | None]:
        """Take tokens of which the first may not stop yet."""
        early, rest = token_ids[: self._early_tokens], token_ids[self._early_tokens :]
        self._early_tokens -= len(early)
        data = b"".join(map(self._decoder.token_bytes, early))
        text, _ = self._matcher.push(self._utf8.decode(data), may_stop=False)
        if not rest:
            return text, None
        more, stop = self.push(rest)
        return text + more, stop

    def flush(self) -> tuple[str, str | None]:
        """The rest of the text, after the last token; half a character becomes U+FFFD."""
        text, stop = self._matcher.push(self._utf8.decode(b"", final=True))
        return text + self._matcher.flush(), stop


@lru_cache(maxsize=64)
def _fallbacks(stop: str) -> Sequence[int]:
    """For each matched length, the next shorter prefix of `stop` that is also a suffix of that part.

    Kept, since all choices of a request ask for the same: they may be hundreds, and nobody else gets a token
    while these are made.
    """
    fallbacks = [0] * (len(stop) + 1)
    matched = 0
    for index in range(1, len(stop)):
        while matched and stop[matched] != stop[index]:
            matched = fallbacks[matched]
        matched += stop[matched] == stop[index]
        fallbacks[index + 1] = matched
    return fallbacks
