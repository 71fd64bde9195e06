"""``POST /v1/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence

from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from milepost.errors import RequestError
from milepost.server.access.tenants import TenantLimits, tenant_of
from milepost.server.endpoints.generation import (
    answer,
    check_num_choices,
    choice_requests,
    outputs_of,
    reason_of,
    usage_of_chunk,
)
from milepost.server.endpoints.prompts import checked_grammar, encode_text, most_prompt_tokens
from milepost.server.endpoints.reading import front_of, in_thread, new_id, read_request
from milepost.server.endpoints.usage import Tally
from milepost.server.front import Front, Run
from milepost.server.protocol.logprobs import completion_logprobs
from milepost.server.protocol.requests import COMPLETION_HARMLESS, CompletionRequest
from milepost.server.protocol.responses import Completion, CompletionChoice, CompletionLogprobs
from milepost.server.protocol.structured import content_grammar
from milepost.server.services import Services
from milepost.types import Request, SamplingParams, TokenLogprobs

__all__ = ["completions"]

Prompt = tuple[int, ...]

BYTES_PER_TOKEN_ID = 8  # as JSON, with its comma


async def completions(http: HttpRequest) -> Response:
    """Continue one prompt or several, whole or as a stream."""
    front = front_of(http)
    asked = await read_request(http, CompletionRequest, COMPLETION_HARMLESS)
    # Away from the event loop: long prompts take long to read and to tokenise.
    is_long = asked.constraint() is not None
    limits = tenant_of(http).limits
    generation = await in_thread(http, lambda: _prepare(front, asked, limits), is_long=is_long)
    return await answer(http, front, generation)


def _prepare(front: Front, asked: CompletionRequest, limits: TenantLimits) -> _Continuation:
    """All that is known before the engine is asked; whether prompts can be served, it checks itself."""
    services = front.services
    prompts = asked.prompts(most=services.config.max_choices, longest=most_prompt_tokens(services))
    check_num_choices(asked, len(prompts), services.config.max_choices)
    grammar = checked_grammar(services, content_grammar(asked), asked.constraint())
    sampling = asked.to_sampling(grammar, most=limits.max_tokens)
    tokens = [
        encode_text(services, prompt) if isinstance(prompt, str) else tuple(prompt) for prompt in prompts
    ]
    echoes = _texts(services, prompts) if asked.echo else [""] * len(prompts)
    _check_repeated(asked, tokens, echoes, services.config.max_body_bytes)
    return _Continuation(front, asked, tokens, echoes, sampling)


def _texts(services: Services, prompts: Sequence[str | list[int]]) -> list[str]:
    """What ``echo`` puts in front; ids that the model does not know are refused, having no text."""
    for prompt in prompts:
        if not isinstance(prompt, str):
            services.engine.limits.validate(Request(request_id="echo", prompt_token_ids=tuple(prompt)))
    return [prompt if isinstance(prompt, str) else services.tokenizer.decode(prompt) for prompt in prompts]


def _check_repeated(
    asked: CompletionRequest, tokens: Sequence[Prompt], echoes: Sequence[str], limit: int
) -> None:
    """Refuse to send prompts back so often that a small request makes a giant reply.

    Raises:
        RequestError: every choice repeats its prompt, and together they are over the limit of a body.
    """
    sizes = {
        "echo": sum(map(len, echoes)),
        "return_token_ids": sum(map(len, tokens)) * BYTES_PER_TOKEN_ID if asked.return_token_ids else 0,
    }
    for field, size in sizes.items():
        if size * asked.n > limit:
            raise RequestError(
                f"{field} would repeat {size * asked.n} bytes of prompts, more than the {limit} of a body. "
                f"Ask for fewer choices, or leave {field} out.",
                param=field,
            )


class _Continuation:
    """The prompts of one request and their continuations."""

    endpoint = "completions"

    def __init__(
        self,
        front: Front,
        asked: CompletionRequest,
        prompts: Sequence[Prompt],
        echoes: Sequence[str],
        sampling: SamplingParams,
    ) -> None:
        self.asked = asked
        self._services = front.services
        self._prompts = prompts
        self._echoes = echoes
        self._sampling = sampling
        self._id = new_id("cmpl")
        self._created = int(time.time())
        self._tally = Tally([len(prompt) for prompt in prompts], asked.n)

    def requests(self) -> list[Request]:
        """What the engine is asked: the choices of the first prompt, then of the next."""
        requests: list[Request] = []
        for index, prompt in enumerate(self._prompts):
            request = Request(
                request_id=f"{self._id}-{index}",
                prompt_token_ids=prompt,
                sampling=self._sampling,
                priority=self.asked.priority,
                cache_salt=self.asked.cache_salt,
            )
            requests.extend(choice_requests(request, self.asked.n))
        return requests

    async def whole(self, runs: Sequence[Run]) -> Completion:
        """All continuations in one piece."""
        texts = [self._echoes[index // self.asked.n] for index in range(len(runs))]
        drawn: list[list[TokenLogprobs]] = [[] for _ in runs]
        tokens: list[list[int]] = [[] for _ in runs]
        reasons: list[str | None] = [None] * len(runs)
        async for index, output in outputs_of(runs):
            texts[index] += output.text
            drawn[index].extend(output.logprobs)
            tokens[index].extend(output.token_ids)
            reasons[index] = reason_of(output)
            self._tally.note(index, output.usage)
        return self._reply(
            [
                self._choice(
                    index,
                    texts[index],
                    reasons[index],
                    self._logprobs(drawn[index]),
                    tokens[index],
                    first=True,
                )
                for index in range(len(runs))
            ]
        )

    async def chunks(self, runs: Sequence[Run]) -> AsyncGenerator[Completion]:
        """The continuations as they come; the last chunk of each choice has its finish reason."""
        offsets = [0] * len(runs)
        begun = [False] * len(runs)
        async for index, output in outputs_of(runs):
            self._tally.note(index, output.usage)
            logprobs = self._logprobs(output.logprobs, offsets[index])
            if logprobs is not None:
                offsets[index] += sum(len(token) for token in logprobs.tokens)
            text = output.text if begun[index] else self._echoes[index // self.asked.n] + output.text
            with_tokens = self.asked.return_token_ids and output.token_ids
            if text or output.finished or with_tokens or (logprobs and logprobs.tokens):
                choice = self._choice(
                    index, text, reason_of(output), logprobs, output.token_ids, first=not begun[index]
                )
                begun[index] = True
                yield self._reply([choice], in_stream=True)
        if self.asked.include_usage:
            yield self._reply([])

    def _choice(
        self,
        index: int,
        text: str,
        reason: str | None,
        logprobs: CompletionLogprobs | None,
        token_ids: Sequence[int],
        *,
        first: bool,
    ) -> CompletionChoice:
        shown = self.asked.return_token_ids
        return CompletionChoice(
            index=index,
            text=text,
            logprobs=logprobs,
            finish_reason=reason,
            prompt_token_ids=self._prompts[index // self.asked.n] if shown and first else UNSET,
            token_ids=tuple(token_ids) if shown else UNSET,
        )

    def _reply(self, choices: list[CompletionChoice], *, in_stream: bool = False) -> Completion:
        return Completion(
            id=self._id,
            created=self._created,
            model=self._services.model_name,
            choices=choices,
            usage=usage_of_chunk(self.asked, self._tally) if in_stream else self._tally.body(),
            system_fingerprint=self._services.system_fingerprint,
        )

    def _logprobs(self, drawn: Sequence[TokenLogprobs], offset: int = 0) -> CompletionLogprobs | None:
        if self.asked.logprobs is None:
            return None
        return completion_logprobs(self._services.tokenizer, drawn, offset)
