"""What the two generating endpoints do alike: start all choices, and answer whole or as a stream."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from milepost.errors import RequestError
from milepost.server.access.tenants import arrival_of, tenant_of
from milepost.server.endpoints.usage import Tally
from milepost.server.front import Front, Run
from milepost.server.protocol.responses import UsageBody, json_response
from milepost.server.protocol.sampling_fields import SamplingFields, seed_of_choice
from milepost.server.streaming import EventStream, event, merge, unless_disconnected
from milepost.types import Request, RequestOutput

__all__ = [
    "Generation",
    "answer",
    "check_num_choices",
    "choice_requests",
    "outputs_of",
    "reason_of",
    "usage_of_chunk",
]


class Generation(Protocol):
    """One HTTP request for replies, and how its endpoint words them."""

    @property
    def endpoint(self) -> str:
        """As metrics call it."""
        ...

    @property
    def asked(self) -> SamplingFields:
        """The request's fields."""
        ...

    def requests(self) -> list[Request]:
        """What the engine is asked: one request a choice."""
        ...

    async def whole(self, runs: Sequence[Run]) -> msgspec.Struct:
        """The reply in one piece."""
        ...

    def chunks(self, runs: Sequence[Run]) -> AsyncGenerator[msgspec.Struct]:
        """The reply as it comes."""
        ...


async def answer(http: HttpRequest, front: Front, generation: Generation) -> Response:
    """Run a generation: every run ends or is closed, whatever happens.

    Raises:
        RequestError: a request can't be served; none is started then.
        EngineStoppedError: the engine takes no more requests.
        ClientDisconnectedError: the client went away before a whole reply was there.
    """
    runs = front.submit(
        generation.requests(),
        generation.endpoint,
        tenant=tenant_of(http),
        timeout=generation.asked.timeout,
        arrival=arrival_of(http),
    )
    if generation.asked.stream:
        return EventStream(_events(generation, runs), runs)
    body = await unless_disconnected(http, generation.whole(runs), runs)
    return json_response(body)


def check_num_choices(asked: SamplingFields, num_prompts: int, limit: int) -> None:
    """Refuse to draw more choices at once than the server's limit.

    Raises:
        RequestError: so it is.
    """
    if num_prompts * asked.n > limit:
        of_prompts = "" if num_prompts == 1 else f" for each of {num_prompts} prompts"
        raise RequestError(
            f"A request may ask for at most {limit} choices. Given: n {asked.n}{of_prompts}. "
            "Send several requests.",
            param="n",
        )


def choice_requests(request: Request, num_choices: int) -> list[Request]:
    """The requests of all choices of one prompt: they differ in their ids and their seeds.

    Args:
        request: of choice 0, as it would be alone.
        num_choices: at least 1.
    """
    if num_choices == 1:
        return [request]
    seed = request.sampling.seed
    return [
        msgspec.structs.replace(
            request,
            request_id=f"{request.request_id}-{choice}",
            sampling=msgspec.structs.replace(request.sampling, seed=seed_of_choice(seed, choice)),
        )
        for choice in range(num_choices)
    ]


async def outputs_of(runs: Sequence[Run]) -> AsyncGenerator[tuple[int, RequestOutput]]:
    """Outputs of all runs as they come, each with its choice's index; the first failure ends all."""
    if len(runs) == 1:  # without a queue and a task
        async for output in runs[0]:
            yield 0, output
        return
    async with aclosing(merge(runs)) as outputs:
        async for item in outputs:
            yield item


def reason_of(output: RequestOutput) -> str | None:
    """Why a choice ended, as the protocol words it; None while it goes on."""
    return None if output.finish_reason is None else output.finish_reason.value


def usage_of_chunk(asked: SamplingFields, tally: Tally) -> UsageBody | UnsetType | None:
    """The ``usage`` of a chunk with choices: null until the last chunk says it, unless every one shall."""
    if asked.continuous_usage:
        return tally.body()
    return None if asked.include_usage else UNSET


async def _events(generation: Generation, runs: Sequence[Run]) -> AsyncGenerator[bytes]:
    async with aclosing(generation.chunks(runs)) as chunks:
        async for chunk in chunks:
            yield event(chunk)
