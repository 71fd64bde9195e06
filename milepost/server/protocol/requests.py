"""The fields of the two generating endpoints, and what they mean to the engine."""

from __future__ import annotations

from typing import Any

import msgspec

from milepost.errors import RequestError
from milepost.server.protocol.fields import ANY_STRING, HarmlessValues
from milepost.types import MAX_LOGPROBS, SamplingParams, check_cache_salt

__all__ = [
    "CHAT_HARMLESS",
    "COMPLETION_HARMLESS",
    "ChatRequest",
    "ChatTemplateArguments",
    "CompletionRequest",
    "ExplainRequest",
    "ResetRequest",
    "SamplingFields",
    "StreamOptions",
]

# OpenAI's default of the completions endpoint; a chat runs to the end of its message or of the context.
DEFAULT_COMPLETION_TOKENS = 16

_COMMON_HARMLESS: HarmlessValues = {
    "n": (1,),
    "user": (ANY_STRING,),
    "logit_bias": ({},),
}

CHAT_HARMLESS: HarmlessValues = {
    **_COMMON_HARMLESS,
    "audio": (),
    "function_call": ("none",),
    "functions": ([],),
    "metadata": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "prompt_cache_key": (ANY_STRING,),
    "prompt_cache_retention": (),
    "response_format": ({"type": "text"},),
    "safety_identifier": (ANY_STRING,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}

COMPLETION_HARMLESS: HarmlessValues = {
    **_COMMON_HARMLESS,
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
}


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``include_usage``: one more chunk at the end, with the token counts and no choices."""

    include_usage: bool = False


class ChatTemplateArguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``thinking``: whether the model thinks before it replies; left out, the model's own default."""

    thinking: bool | None = None


class SamplingFields(msgspec.Struct, frozen=True, kw_only=True):
    """What both endpoints have in common. ``top_k`` to ``cache_salt`` are beyond OpenAI's protocol."""

    model: str
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    stop: str | list[str] = []  # msgspec gives each struct its own copy
    stream: bool = False
    stream_options: StreamOptions | None = None
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    stop_token_ids: list[int] = []
    priority: int = 0
    cache_salt: str = ""

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    def check(self) -> None:
        """Check what spans several fields.

        Raises:
            RequestError: with the field at fault.
        """
        if self.stream_options is not None and not self.stream:
            raise RequestError(
                "stream_options only means something with stream: true. Leave it out.", param="stream_options"
            )
        check_cache_salt(self.cache_salt)

    def sampling(self, *, max_tokens: int | None, logprobs: int | None) -> SamplingParams:
        """The engine's form of the fields; which tokens end a reply of this model, the engine knows.

        Args:
            max_tokens: the limit that the endpoint derived.
            logprobs: alternatives per token, or None.

        Raises:
            RequestError: a value is out of range.
        """
        return SamplingParams(
            temperature=self.temperature,
            top_k=0 if self.top_k == -1 else self.top_k,  # -1 is the field's other spelling of "off"
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
            max_tokens=max_tokens,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
        )


class ChatRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of ``/v1/chat/completions``. Messages and tools are checked by the chat encoding."""

    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool = False
    top_logprobs: int | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: ChatTemplateArguments = ChatTemplateArguments()

    def check(self) -> None:
        """Check what spans several fields; see `SamplingFields.check`."""
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
        return {
            "thinking": "chat_template_kwargs.thinking",
            "thinking_effort": "reasoning_effort",
            "max_tokens": limit,
            "prompt": "messages",
        }

    def to_sampling(self) -> SamplingParams:
        """The engine's form; see `SamplingFields.sampling`."""
        limit = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return self.sampling(max_tokens=limit, logprobs=logprobs)


class CompletionRequest(SamplingFields, frozen=True, kw_only=True):
    """Body of ``/v1/completions``: one prompt or several, as text or as token ids."""

    prompt: str | list[Any]
    logprobs: int | None = None

    def prompts(self) -> list[str | list[int]]:
        """Each prompt of the request, as text or as token ids.

        Raises:
            RequestError: a list that is neither of strings, nor of ids, nor of lists of ids.
        """
        if isinstance(self.prompt, str):
            return [self.prompt]
        if self.prompt and all(isinstance(item, str) for item in self.prompt):
            return list(self.prompt)
        if self.prompt and all(_is_token_ids(item) for item in self.prompt):
            return list(self.prompt)
        if self.prompt and _is_token_ids(self.prompt):
            return [self.prompt]
        raise RequestError(
            "prompt must be a string, a list of strings, a list of token ids or a list of such lists, "
            "and not empty.",
            param="prompt",
        )

    def to_sampling(self) -> SamplingParams:
        """The engine's form; see `SamplingFields.sampling`."""
        limit = DEFAULT_COMPLETION_TOKENS if self.max_tokens is None else self.max_tokens
        return self.sampling(max_tokens=limit, logprobs=self.logprobs)


class ResetRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``/cache/reset``, which has no fields: a salt, say, would not limit what is dropped."""


class ExplainRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of ``/cache/explain``: a prompt, as text or token ids, or what shapes the prompt of a chat."""

    model: str | None = None
    prompt: str | list[int] | None = None
    messages: list[dict[str, Any]] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: ChatTemplateArguments = ChatTemplateArguments()
    cache_salt: str = ""

    def check(self) -> None:
        """Check what spans several fields.

        Raises:
            RequestError: with the field at fault.
        """
        check_cache_salt(self.cache_salt)
        if (self.prompt is None) == (self.messages is None):
            given = "neither" if self.prompt is None else "both"
            raise RequestError(f"Give prompt or messages, one of them. Given: {given}.", param="prompt")
        if self.messages is None and (self.tools or self.tool_choice or self.reasoning_effort):
            field = next(name for name in ("tools", "tool_choice", "reasoning_effort") if getattr(self, name))
            raise RequestError(f"{field} only means something with messages. Leave it out.", param=field)


def _is_token_ids(value: object) -> bool:
    # By type: JSON's true is no number, though Python's is.
    return isinstance(value, list) and all(type(item) is int for item in value)
