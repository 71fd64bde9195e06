"""``POST /v1/completions``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from milepost.server.access.tenants import arrival_of, tenant_of
from milepost.server.endpoints.reading import front_of, new_id, read_request
from milepost.server.front import Front, Run
from milepost.server.protocol.logprobs import completion_logprobs
from milepost.server.protocol.requests import COMPLETION_HARMLESS, CompletionRequest
from milepost.server.protocol.responses import Completion, CompletionChoice, CompletionLogprobs, usage_body
from milepost.server.streaming import EventStream, event, merge, unless_disconnected
from milepost.types import Request, RequestOutput, TokenLogprobs, Usage

__all__ = ["completions"]


async def completions(http: HttpRequest) -> Response:
    """Continue one prompt or several, whole or as a stream."""
    front = front_of(http)
    asked = await read_request(http, CompletionRequest, COMPLETION_HARMLESS)
    prompts = await asyncio.to_thread(_tokenize, front, asked)
    exchange = _Exchange(front, asked)
    runs = front.submit_all(
        exchange.requests(prompts), "completions", tenant=tenant_of(http), arrival=arrival_of(http)
    )
    if asked.stream:
        return EventStream(exchange.chunks(runs), runs)
    body = await unless_disconnected(http, exchange.whole(runs), runs)
    return Response(msgspec.json.encode(body), media_type="application/json")


def _tokenize(front: Front, asked: CompletionRequest) -> list[tuple[int, ...]]:
    """Token ids of each prompt; whether they can be served, the engine checks."""
    tokenizer = front.services.tokenizer
    return [
        tuple(tokenizer.encode(prompt) if isinstance(prompt, str) else prompt) for prompt in asked.prompts()
    ]


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
                cache_salt=self.asked.cache_salt,
            )
            for index, token_ids in enumerate(prompts)
        ]

    async def whole(self, runs: Sequence[Run]) -> Completion:
        """All continuations in one piece."""
        texts = [""] * len(runs)
        drawn: list[list[TokenLogprobs]] = [[] for _ in runs]
        last: dict[int, RequestOutput] = {}
        async with aclosing(merge(runs)) as outputs:
            async for index, output in outputs:
                texts[index] += output.text
                drawn[index].extend(output.logprobs)
                last[index] = output
        choices = [
            CompletionChoice(
                index=index,
                text=text,
                logprobs=self._logprobs(drawn[index]),
                finish_reason=_reason(last[index]),
            )
            for index, text in enumerate(texts)
        ]
        return self._reply(choices, [output.usage for output in last.values()])

    async def chunks(self, runs: Sequence[Run]) -> AsyncGenerator[bytes]:
        """The continuations as events; the last one of each choice has its finish reason."""
        offsets = [0] * len(runs)
        usages: list[Usage] = []
        async with aclosing(merge(runs)) as outputs:
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
