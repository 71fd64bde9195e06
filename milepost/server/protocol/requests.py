"""The bodies of the two generating endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from milepost.errors import RequestError, RequestTooLargeError
from milepost.server.protocol.chat_fields import CHAT_PROMPT_HARMLESS, CHAT_WIRE_NAMES
from milepost.server.protocol.fields import HarmlessValues
from milepost.server.protocol.sampling_fields import COMMON_HARMLESS, SamplingFields
from milepost.types import MAX_LOGPROBS, Grammar, SamplingParams

__all__ = ["CHAT_HARMLESS", "COMPLETION_HARMLESS", "ChatRequest", "CompletionRequest"]

# OpenAI's default of the completions endpoint; a chat runs to the end of its message or of the context.
DEFAULT_COMPLETION_TOKENS = 16

CHAT_HARMLESS: HarmlessValues = {
    **COMMON_HARMLESS,
    **CHAT_PROMPT_HARMLESS,
    "audio": (),
    "echo": (False,),
    "function_call": ("none",),
    "functions": ([],),
    "include_reasoning": (True,),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "prompt_cache_options": ({}, {"mode": "implicit"}),
    "prompt_cache_retention": ("in_memory",),
    "verbosity": ("medium",),
    "web_search_options": (),
}

COMPLETION_HARMLESS: HarmlessValues = {**COMMON_HARMLESS, "suffix": ("",), "prompt_embeds": ()}


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of ``/v1/chat/completions``. Messages and tools are checked by the chat encoding."""

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] = msgspec.field(default_factory=dict)
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None

    def check(self) -> None:
        """Check what no single type says; see `SamplingFields.check`."""
        super().check()
        if self.top_logprobs is not None and not self.logprobs:
            raise RequestError("top_logprobs needs logprobs: true.", param="top_logprobs")
        if self.top_logprobs is not None and not 0 <= self.top_logprobs <= MAX_LOGPROBS:
            raise RequestError(
                f"top_logprobs must be between 0 and {MAX_LOGPROBS}. Given: {self.top_logprobs}.",
                param="top_logprobs",
            )
        asked = {self.max_tokens, self.max_completion_tokens} - {None}
        if len(asked) > 1:
            raise RequestError(
                "max_tokens and max_completion_tokens are one limit under two names. "
                f"Given: {self.max_tokens} and {self.max_completion_tokens}. Give one of them.",
                param="max_completion_tokens",
            )

    @property
    def wire_names(self) -> dict[str, str]:
        """This endpoint's names of what encoding and engine call otherwise."""
        limit = "max_tokens" if self.max_completion_tokens is None else "max_completion_tokens"
        return {**CHAT_WIRE_NAMES, "max_tokens": limit, "prompt": "messages"}

    def to_sampling(self, grammar: Grammar | None) -> SamplingParams:
        """The engine's form; see `SamplingFields.sampling`."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.sampling(max_tokens=limit, logprobs=logprobs, grammar=grammar)


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of ``/v1/completions``: one prompt or several, as text or as token ids."""

    prompt: str | list[Any]
    logprobs: int | None = None
    echo: bool = False
    best_of: int | None = None

    def check(self) -> None:
        """Check what no single type says; see `SamplingFields.check`."""
        super().check()
        if self.echo and self.logprobs is not None:
            raise RequestError(
                "echo with logprobs is not supported: log-probabilities of a prompt are not computed. "
                "Leave one of them out.",
                param="echo",
            )
        if self.best_of is not None and self.best_of != self.n:
            raise RequestError(
                f"best_of may only be n, {self.n}: replies are not ranked. Given: {self.best_of}.",
                param="best_of",
            )

    def prompts(self, *, most: int, longest: int) -> list[str | list[int]]:
        """Each prompt of the request, as text or as token ids.

        Args:
            most: prompts that one request may hold.
            longest: token ids that one may hold; more are refused before they are looked at.

        Raises:
            RequestTooLargeError: too many token ids.
            RequestError: a list that is neither of strings, nor of ids, nor of lists of ids; too many.
        """
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and type(self.prompt[0]) is int:
            return [_token_ids(self.prompt, longest)]
        if len(self.prompt) > most:
            raise RequestError(
                f"prompt must hold at most {most} prompts. Given: {len(self.prompt)}. Send several requests.",
                param="prompt",
            )
        if self.prompt and all(isinstance(item, str) for item in self.prompt):
            return list(self.prompt)
        if self.prompt and all(isinstance(item, list) for item in self.prompt):
            return [_token_ids(item, longest) for item in self.prompt]
        raise _no_prompt()

    def to_sampling(self, grammar: Grammar | None, *, most: int | None) -> SamplingParams:
        """The engine's form; see `SamplingFields.sampling`.

        Args:
            grammar: what the reply may spell, or None.
            most: tokens that whoever asks may have; None for any number.
        """
        limit = self.max_tokens
        if limit is None:
            limit = DEFAULT_COMPLETION_TOKENS if most is None else min(most, DEFAULT_COMPLETION_TOKENS)
        return self.sampling(max_tokens=limit, logprobs=self.logprobs, grammar=grammar)


def _token_ids(given: Sequence[Any], longest: int) -> list[int]:
    if len(given) > longest:
        raise RequestTooLargeError(
            f"The prompt must be at most {longest} tokens. Given: {len(given)}. Shorten it.", param="prompt"
        )
    # By type: JSON's true is no number, though Python's is.
    if not all(type(item) is int for item in given):
        raise _no_prompt()
    return list(given)


def _no_prompt() -> RequestError:
    return RequestError(
        "prompt must be a string, a list of strings, a list of token ids or a list of such lists, "
        "and not empty.",
        param="prompt",
    )
