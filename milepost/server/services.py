"""What the server is handed by the composition root, and the little that it asks of the engine."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from milepost.chat.encoding import ChatEncoding
from milepost.chat.tokenizer import Tokenizer
from milepost.types import Request, RequestOutput

__all__ = ["EngineFront", "EngineStats", "Services"]


class EngineStats(Protocol):
    """A snapshot of the engine's numbers."""

    @property
    def num_running(self) -> int:
        """Requests that hold pages."""
        ...

    @property
    def num_waiting(self) -> int:
        """Requests in the queue."""
        ...

    @property
    def num_free_pages(self) -> int:
        """Pages that nothing owns."""
        ...

    @property
    def num_owned_pages(self) -> int:
        """Pages that requests own."""
        ...

    @property
    def num_preemptions(self) -> int:
        """Preemptions since the start."""
        ...

    @property
    def num_steps(self) -> int:
        """Steps since the start."""
        ...


class EngineFront(Protocol):
    """The engine as an event loop sees it; `milepost.engine.AsyncEngine` is one."""

    def stream(self, request: Request) -> AsyncGenerator[RequestOutput]:
        """Submit a request and yield its outputs; closing the generator aborts the request.

        Raises:
            RequestError: the request can't be served.
            EngineStoppedError: the engine takes no more requests.
        """
        ...

    def abort(self, request_id: str) -> None:
        """End a request, whose stream then ends with an ABORT output. Unknown ids are ignored."""
        ...

    def stats(self) -> EngineStats:
        """A snapshot for the metrics."""
        ...


@dataclass(frozen=True, kw_only=True)
class Services:
    """Everything that the server serves with.

    Attributes:
        engine: runs the requests.
        tokenizer: of the completions endpoint's prompts and of all log-probabilities.
        encoding: of the chat endpoint; None when the model has no chat form.
        model_name: the name that requests must ask for.
        max_model_len: tokens of prompt and reply together, as `/v1/models` reports it.
        created: Unix time of the model's object in `/v1/models`.
        system_fingerprint: changes when the same seed may give other tokens.
    """

    engine: EngineFront
    tokenizer: Tokenizer
    encoding: ChatEncoding | None
    model_name: str
    max_model_len: int
    created: int
    system_fingerprint: str
