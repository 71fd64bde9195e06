"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from milepost.errors import RequestError
from milepost.server.exchange import check_model, front_of, new_id, read_request
from milepost.server.fields import read_body
from milepost.server.generation import Front
from milepost.server.logprobs import completion_logprobs
from milepost.server.requests import COMPLETION_HARMLESS, CompletionRequest
from milepost.server.responses import Completion, CompletionChoice, CompletionLogprobs, usage_body
from milepost.server.streaming import (
    EventStream,
    event,
    merge,
    started,
    stream_events,
    unless_disconnected,
)
from milepost.types import Request, RequestOutput, TokenLogprobs, Usage

__all__ = ["completions"]


async def completions(http: HttpRequest) -> Response:
    """Continue one prompt or several, whole or as a stream."""
    front = front_of(http)
    asked = read_body(await read_request(http), CompletionRequest, COMPLETION_HARMLESS)
    front.check_open()
    check_model(asked.model, front.services.model_name)
    asked.check()
    prompts = await asyncio.to_thread(_tokenize, front, asked)
    exchange = _Exchange(front, asked)
    runs = [front.run(request, "completions") for request in exchange.requests(prompts)]
    outputs = merge(runs)
    if asked.stream:
        first = await unless_disconnected(http, started(outputs))
        return EventStream(stream_events(exchange.chunks(first, len(runs))))
    body = await unless_disconnected(http, exchange.whole(outputs, len(runs)))
    return Response(msgspec.json.encode(body), media_type="application/json")


def _tokenize(front: Front, asked: CompletionRequest) -> list[tuple[int, ...]]:
    """Token ids of each prompt.

    Raises:
        RequestError: an empty prompt, or an id outside the vocabulary.
    """
    tokenizer = front.services.tokenizer
    found = []
    for prompt in asked.prompts():
        token_ids = tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        if not token_ids:
            raise RequestError("prompt must hold at least one token. Given: an empty prompt.", param="prompt")
        if bad := [token_id for token_id in token_ids if not 0 <= token_id < tokenizer.vocab_size]:
            raise RequestError(
                f"prompt: token ids must be between 0 and {tokenizer.vocab_size - 1}. Given: {bad[0]}.",
                param="prompt",
            )
        found.append(tuple(token_ids))
    return found


@dataclass
class _Exchange:
    """The prompts of one request and their continuations."""

    front: Front
    asked: CompletionRequest
    id: str = field(default_factory=lambda: new_id("cmpl"))
    created: int = field(default_factory=lambda: int(time.time()))

    def requests(self, prompts: Sequence[tuple[int, ...]]) -> list[Request]:
        """What the engine is asked, one request a prompt."""
        sampling = self.asked.to_sampling()
        return [
            Request(
                request_id=f"{self.id}-{index}",
                prompt_token_ids=token_ids,
                sampling=sampling,
                priority=self.asked.priority,
                arrival_time=time.monotonic(),
            )
            for index, token_ids in enumerate(prompts)
        ]

    async def whole(self, outputs: AsyncGenerator[tuple[int, RequestOutput]], num_choices: int) -> Completion:
        """All continuations in one piece."""
        texts = [""] * num_choices
        drawn: list[list[TokenLogprobs]] = [[] for _ in range(num_choices)]
        last: dict[int, RequestOutput] = {}
        try:
            async for index, output in outputs:
                texts[index] += output.text
                drawn[index].extend(output.logprobs)
                last[index] = output
        finally:
            await outputs.aclose()
        choices = [
            CompletionChoice(
                index=index,
                text=texts[index],
                logprobs=self._logprobs(drawn[index]),
                finish_reason=_reason(last[index]),
            )
            for index in range(num_choices)
        ]
        return self._reply(choices, [last[index].usage for index in range(num_choices)])

    async def chunks(
        self, outputs: AsyncGenerator[tuple[int, RequestOutput]], num_choices: int
    ) -> AsyncGenerator[bytes]:
        """The continuations as events; the last one of each choice has its finish reason."""
        offsets = [0] * num_choices
        usages: list[Usage] = []
        try:
            async for index, output in outputs:
                if output.finished:
                    usages.append(output.usage)
                logprobs = self._logprobs(output.logprobs, offsets[index])
                if logprobs is not None:
                    offsets[index] += sum(len(token) for token in logprobs.tokens)
                if output.text or output.finished or (logprobs and logprobs.tokens):
                    choice = CompletionChoice(
                        index=index, text=output.text, logprobs=logprobs, finish_reason=_reason(output)
                    )
                    yield event(self._reply([choice], None))
            if self.asked.include_usage:
                yield event(self._reply([], usages))
        finally:
            await outputs.aclose()

    def _reply(self, choices: list[CompletionChoice], usages: list[Usage] | None) -> Completion:
        empty = None if self.asked.include_usage else UNSET
        return Completion(
            id=self.id,
            created=self.created,
            model=self.asked.model,
            choices=choices,
            usage=empty if usages is None else usage_body(usages),
            system_fingerprint=self.front.services.system_fingerprint,
        )

    def _logprobs(self, drawn: Sequence[TokenLogprobs], offset: int = 0) -> CompletionLogprobs | None:
        if self.asked.logprobs is None:
            return None
        return completion_logprobs(self.front.services.tokenizer, drawn, offset)


def _reason(output: RequestOutput) -> str | None:
    return None if output.finish_reason is None else output.finish_reason.value
