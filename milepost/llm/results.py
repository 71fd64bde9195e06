"""What comes of prompts and conversations that run to their end."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from milepost.chat.reply import Reply
from milepost.types import FinishReason, RequestOutput, TokenLogprobs, Usage

__all__ = ["ChatCompletion", "Completion", "completion_of"]


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one prompt.

    Attributes:
        text: the continuation, up to a stop string or a stop token.
        token_ids: all tokens drawn, a stop token included.
        logprobs: one entry a token when they were asked for.
        finish_reason: STOP, LENGTH or ABORT.
        stop_reason: the stop string or stop token that ended it, or None.
        usage: token counts.
    """

    text: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...]
    finish_reason: FinishReason
    stop_reason: str | int | None
    usage: Usage


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one conversation: the parsed `reply`, and the completion that it was parsed from."""

    reply: Reply
    completion: Completion


def completion_of(outputs: Sequence[RequestOutput]) -> Completion:
    """All outputs of a request as one."""
    last = outputs[-1]
    return Completion(
        text="".join(output.text for output in outputs),
        token_ids=tuple(token_id for output in outputs for token_id in output.token_ids),
        logprobs=tuple(entry for output in outputs for entry in output.logprobs),
        finish_reason=last.finish_reason or FinishReason.ABORT,
        stop_reason=last.stop_reason,
        usage=last.usage,
    )
