"""What the server is handed by the composition root."""

from __future__ import annotations

from dataclasses import dataclass

from milepost.chat.encoding import ChatEncoding
from milepost.chat.tokenizer import Tokenizer
from milepost.engine.async_engine import AsyncEngine
from milepost.grammar.compiler import GrammarCompiler
from milepost.server.config import ServerConfig
from milepost.server.telemetry.metrics import Metrics
from milepost.server.telemetry.tracing import Tracing

__all__ = ["Services"]


@dataclass(frozen=True, kw_only=True)
class Services:
    """Everything that the server serves with.

    Attributes:
        config: what whoever runs the server decided.
        engine: runs the requests; whoever built it stops it when the server has returned.
        tokenizer: of the completions endpoint's prompts and of all log-probabilities.
        metrics: what the engine was built to tell its latencies.
        grammars: checks what replies shall spell, and keeps it ready for whoever draws them.
        encoding: of the chat endpoint; its stop tokens are among those that the engine was built with.
        model_name: the name that requests must ask for.
        created: Unix time of the model's object in ``/v1/models``.
        tracing: where traces of requests go, None for nowhere.
        system_fingerprint: changes when the same seed may give other tokens.
    """

    config: ServerConfig
    engine: AsyncEngine
    metrics: Metrics
    tokenizer: Tokenizer
    grammars: GrammarCompiler
    encoding: ChatEncoding
    model_name: str
    created: int
    system_fingerprint: str
    tracing: Tracing | None = None
