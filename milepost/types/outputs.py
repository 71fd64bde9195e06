"""News of requests, for whoever reads them."""

from __future__ import annotations

import enum

import msgspec

__all__ = ["FinishReason", "RequestOutput", "TokenLogprobs", "Usage"]


class FinishReason(enum.Enum):
    """Why a request ended. Every accepted request ends with exactly one of these."""

    STOP = "stop"  # a stop token, the end-of-message token or a stop string
    LENGTH = "length"  # max_tokens or the model's context length
    ABORT = "abort"  # the client gave up
    ERROR = "error"  # the request failed; RequestOutput.error says how


class TokenLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Log-probabilities (natural log, of the unmodified distribution) at one drawn token."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of one request so far."""

    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0
    num_preemptions: int = 0


class RequestOutput(msgspec.Struct, frozen=True, kw_only=True):
    """News of one request: what a step added. The last one carries `finish_reason`.

    ``text`` is whole characters only and never part of a stop string. ``token_ids`` and
    ``logprobs`` are the tokens drawn since the last output; text may lag behind them.
    """

    request_id: str
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    error: str | None = None
    usage: Usage

    @property
    def finished(self) -> bool:
        """Whether this is the request's last output."""
        return self.finish_reason is not None
