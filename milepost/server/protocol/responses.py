"""The objects that the endpoints answer with, field by field as OpenAI's clients expect them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response

__all__ = [
    "CacheReset",
    "ChatChoice",
    "ChatChunk",
    "ChatChunkChoice",
    "ChatCompletion",
    "ChatDelta",
    "ChatLogprobs",
    "ChatMessage",
    "Completion",
    "CompletionChoice",
    "CompletionLogprobs",
    "CompletionTokensDetails",
    "FunctionCall",
    "FunctionCallDelta",
    "Health",
    "Model",
    "ModelList",
    "PromptTokensDetails",
    "TokenLogprob",
    "ToolCallBody",
    "ToolCallDeltaBody",
    "TopLogprob",
    "UsageBody",
    "Version",
    "json_response",
]


def json_response(body: msgspec.Struct, headers: Mapping[str, str] | None = None) -> Response:
    """The reply with a struct as its body."""
    return Response(msgspec.json.encode(body), media_type="application/json", headers=headers)


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """``cached_tokens``: prompt tokens that were not computed again."""

    cached_tokens: int


class CompletionTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """``reasoning_tokens``: tokens of the reply that were drawn while it thought."""

    reasoning_tokens: int


class UsageBody(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of a reply."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


# --- log-probabilities ------------------------------------------------------------------------------


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """One alternative at a token; ``bytes`` are exact where ``token`` can't show half a character."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A drawn token with its alternatives."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The chat endpoint's form: one entry for each drawn token, markers of the reply's form included."""

    content: list[TokenLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """The completions endpoint's form: four lists in step."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


# --- chat -------------------------------------------------------------------------------------------


class FunctionCall(msgspec.Struct, frozen=True, kw_only=True):
    """The function that the model calls; ``arguments`` is JSON text."""

    name: str
    arguments: str


class ToolCallBody(msgspec.Struct, frozen=True, kw_only=True):
    """A whole tool call."""

    id: str
    function: FunctionCall
    type: Literal["function"] = "function"


class FunctionCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """``name`` comes once; the pieces of ``arguments``, joined, are the whole."""

    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDeltaBody(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to a tool call; ``id`` and ``type`` come with its first piece only."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: FunctionCallDelta


class ChatMessage(msgspec.Struct, frozen=True, kw_only=True):
    """The reply; ``content`` is null when it holds tool calls and nothing else."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallBody] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One of a reply's choices; with ``return_token_ids`` also the tokens that were drawn."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None = None
    finish_reason: str
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole chat reply."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    system_fingerprint: str
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to the reply."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDeltaBody] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk says of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    token_ids: tuple[int, ...] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a streamed chat reply."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET
    system_fingerprint: str
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET


# --- completions and models -------------------------------------------------------------------------


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The continuation of one prompt, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: str | None
    prompt_token_ids: tuple[int, ...] | UnsetType = UNSET
    token_ids: tuple[int, ...] | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply of the completions endpoint, or one event of it: both bear the same name there."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET
    system_fingerprint: str


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The model that is served; ``root`` and ``max_model_len`` are vLLM's."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: Literal["milepost"] = "milepost"
    root: str
    max_model_len: int


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of ``/v1/models``."""

    object: Literal["list"] = "list"
    data: list[Model]


class CacheReset(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of ``/cache/reset``: what was dropped."""

    dropped_snapshots: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of ``/health`` and ``/ready`` when all is well."""

    status: Literal["ok"] = "ok"


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """Reply of ``/version``."""

    version: str
