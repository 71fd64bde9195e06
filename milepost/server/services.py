"""What the server is handed by the composition root."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.chat.encoding import ChatEncoding
from milepost.chat.tokenizer import Tokenizer
from milepost.engine.async_engine import AsyncEngine

__all__ = ["Services"]


@dataclass(frozen=True, kw_only=True)
class Services:
    """Everything that the server serves with.

    Attributes:
        engine: runs the requests; whoever built it stops it when the server has returned.
        tokenizer: of the completions endpoint's prompts and of all log-probabilities.
        encoding: of the chat endpoint; None when the model has no chat form.
        model_name: the name that requests must ask for.
        created: Unix time of the model's object in ``/v1/models``.
        system_fingerprint: changes when the same seed may give other tokens.
    """

    engine: AsyncEngine
    tokenizer: Tokenizer
    encoding: ChatEncoding | None
    model_name: str
    created: int
    system_fingerprint: str
