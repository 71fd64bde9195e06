"""From a checkpoint folder to text: the composition root that sees both halves.

load_engine(config)   every part of a running engine, from files
LLM(folder)           the same for Python users: generate, chat, stream

with LLM("path/to/checkpoint", memory="2GiB") as llm:
    print(llm.chat([{"role": "user", "content": "Hello"}]).reply.content)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import torch

from milepost.chat.encoding import ChatEncoding
from milepost.chat.families import chat_encoding
from milepost.chat.reply import Reply, ReplyDelta, ReplyParser, collect_reply
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.tokenizer_folder import load_tokenizer
from milepost.config import EngineConfig, ResolvedConfig
from milepost.config_json import read_model_spec
from milepost.engine.engine import Engine
from milepost.engine.reports import EngineObserver, EngineStats
from milepost.errors import ExecutionError, RequestError
from milepost.kernels.ops import load_ops
from milepost.memory.layout import PagedLayout, paged_layout
from milepost.memory.pool import PagePool
from milepost.memory.sizing import resolve
from milepost.models.loader import load_model, weight_bytes
from milepost.models.weights import Progress
from milepost.runtime.dtypes import torch_dtype
from milepost.runtime.model_runner import ModelRunner
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.types import FinishReason, Request, RequestOutput, SamplingParams, TokenLogprobs, Usage

__all__ = [
    "LLM",
    "ChatCompletion",
    "ChatStream",
    "Completion",
    "LoadedEngine",
    "TokenStream",
    "load_engine",
]

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class LoadedEngine:
    """A running engine and what it was built from.

    Attributes:
        engine: the step loop; close it when done.
        tokenizer: the checkpoint's.
        encoding: the chat encoding of the model's family.
        layout: how states and KV lie in pages.
        config: the engine's numbers.
    """

    engine: Engine
    tokenizer: Tokenizer
    encoding: ChatEncoding
    layout: PagedLayout
    config: ResolvedConfig


def load_engine(
    config: EngineConfig, *, progress: Progress | None = None, observer: EngineObserver | None = None
) -> LoadedEngine:
    """Load a checkpoint and build an engine that serves it.

    What is wrong with the options, the config or the tokenizer is found before any weight is read.

    Args:
        config: what the user asked for.
        progress: called with (bytes read, bytes to read) while weights load.
        observer: told of the engine's latencies.

    Raises:
        CheckpointError: the checkpoint can't be used.
        TokenizerError: its tokenizer can't be used.
        ConfigError: the options don't fit the model or the machine.
    """
    folder = Path(config.model)
    spec = read_model_spec(folder)
    tokenizer = load_tokenizer(folder, model_vocab_size=spec.vocab_size)
    encoding = chat_encoding(spec.family.value, tokenizer)
    layout = paged_layout(spec, **config.layout_options())
    dtype = torch_dtype(config.resolved_dtype)
    resolved = resolve(config, spec, layout, weight_bytes=weight_bytes(spec, dtype))
    torch.set_num_threads(resolved.threads)
    model = load_model(folder, dtype=dtype, ops=load_ops(resolved.kernels), progress=progress)
    scheduler = Scheduler(
        SchedulerConfig(
            max_model_len=resolved.max_model_len,
            token_budget=resolved.max_num_batched_tokens,
            max_num_seqs=resolved.max_num_seqs,
            stop_token_ids=tuple(dict.fromkeys(spec.stop_token_ids + encoding.stop_token_ids)),
            vocab_size=spec.vocab_size,
        ),
        layout,
        PagePool(resolved.num_pages),
    )
    runner = ModelRunner.from_config(model, layout, resolved)
    runner.warm_up()
    engine = Engine(runner, scheduler, tokenizer, observer=observer)
    return LoadedEngine(engine=engine, tokenizer=tokenizer, encoding=encoding, layout=layout, config=resolved)


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


class TokenStream:
    """Outputs of one request as they come; the engine only works while somebody iterates.

    Leaving the iteration early aborts the request.

    Raises (while iterating):
        ExecutionError: the request failed; the engine goes on.
    """

    def __init__(self, engine: Engine, request: Request) -> None:
        self._engine = engine
        self._request = request
        self._aborted = False

    def abort(self) -> None:
        """End the reply after the step that runs now. Safe from a signal handler or another thread."""
        self._aborted = True

    def __iter__(self) -> Iterator[RequestOutput]:
        """Yield outputs; the last one has a finish reason."""
        request_id = self._request.request_id
        self._engine.submit(self._request)
        try:
            while True:
                for output in self._next_outputs(request_id):
                    _raise_if_failed(output)
                    yield output
                    if output.finished:
                        return
        finally:
            # Nothing happens when the request has ended.
            self._engine.abort(request_id)

    def _next_outputs(self, request_id: str) -> Iterator[RequestOutput]:
        if self._aborted:
            last = self._engine.abort(request_id)
            if last is not None:
                yield last
        else:
            yield from (output for output in self._engine.step() if output.request_id == request_id)


class ChatStream:
    """A reply as it comes: (its new parts, the output they came from).

    Raises (while iterating):
        ExecutionError: the request failed; the engine goes on.
    """

    def __init__(self, outputs: TokenStream, parser: ReplyParser) -> None:
        self._outputs = outputs
        self._parser = parser

    def abort(self) -> None:
        """End the reply after the step that runs now. Safe from a signal handler or another thread."""
        self._outputs.abort()

    def __iter__(self) -> Iterator[tuple[ReplyDelta, RequestOutput]]:
        """Yield what each step adds to the reply; the last output has a finish reason."""
        for output in self._outputs:
            yield self._parser.feed(output), output


class LLM:
    """A model ready to answer, for use from one thread. Use it as a context manager, or `close` it.

    Args:
        model: the checkpoint's folder.
        progress: called with (bytes read, bytes to read) while weights load.
        options: the other options of `milepost.config.EngineConfig`.

    Raises:
        ConfigError: an unknown option (with the nearest match), or one that doesn't fit.
        CheckpointError: the checkpoint can't be used.
        TokenizerError: its tokenizer can't be used.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        progress: Progress | None = None,
        **options: Any,  # noqa: ANN401  # EngineConfig checks names and values
    ) -> None:
        config = EngineConfig.from_options({"model": model, **options})
        self._loaded = load_engine(config, progress=progress)
        self._numbers = count()

    def __enter__(self) -> LLM:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._loaded.tokenizer

    @property
    def layout(self) -> PagedLayout:
        """How states and KV lie in pages."""
        return self._loaded.layout

    @property
    def config(self) -> ResolvedConfig:
        """The engine's numbers."""
        return self._loaded.config

    def stats(self) -> EngineStats:
        """The engine's counters."""
        return self._loaded.engine.stats()

    def close(self) -> None:
        """Give the arena's memory back; the object answers nothing afterwards. Safe to call twice."""
        self._loaded.engine.close()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], sampling: SamplingParams | None = None
    ) -> list[Completion]:
        """Continue prompts, all of them together.

        Args:
            prompts: one prompt or several, each as text or as token ids.
            sampling: how tokens are drawn and when a reply ends.

        Returns:
            one completion a prompt, in their order.

        Raises:
            RequestTooLargeError: a prompt is over the limit; nothing is run.
            RequestError: a prompt is empty or holds an id outside the vocabulary; nothing is run.
            ExecutionError: a request failed while it ran; the others are aborted.
        """
        listed = _listed(prompts)
        requests = [self._prompt_request(prompt, sampling) for prompt in listed]
        return [_completion(outputs) for outputs in self._run(requests)]

    def chat(
        self,
        messages: Messages,
        sampling: SamplingParams | None = None,
        **form: Any,  # noqa: ANN401
    ) -> ChatCompletion:
        """Answer a conversation.

        Args:
            messages: OpenAI-style messages.
            sampling: how tokens are drawn and when the reply ends.
            form: the other arguments of `ChatEncoding.encode`, such as ``thinking=True``.

        Raises:
            RequestError, ExecutionError: as `generate`.
        """
        return self.chat_all([messages], sampling, **form)[0]

    def chat_all(
        self,
        conversations: Sequence[Messages],
        sampling: SamplingParams | None = None,
        **form: Any,  # noqa: ANN401  # the encoding checks names and values
    ) -> list[ChatCompletion]:
        """Answer conversations, all of them together; see `chat`."""
        pairs = [self._chat_request(messages, sampling, form) for messages in conversations]
        runs = self._run([request for request, _ in pairs])
        return [
            ChatCompletion(
                reply=collect_reply([parser.feed(output) for output in outputs]),
                completion=_completion(outputs),
            )
            for (_, parser), outputs in zip(pairs, runs, strict=True)
        ]

    def stream(self, prompt: Prompt, sampling: SamplingParams | None = None) -> TokenStream:
        """Continue one prompt, token by token; see `generate` for arguments and errors."""
        request = self._prompt_request(prompt, sampling)
        return TokenStream(self._loaded.engine, request)

    def stream_chat(
        self,
        messages: Messages,
        sampling: SamplingParams | None = None,
        **form: Any,  # noqa: ANN401
    ) -> ChatStream:
        """Answer a conversation as it comes; see `chat` for arguments and errors."""
        request, parser = self._chat_request(messages, sampling, form)
        return ChatStream(TokenStream(self._loaded.engine, request), parser)

    def _prompt_request(self, prompt: Prompt, sampling: SamplingParams | None) -> Request:
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        return self._request(tuple(token_ids), (), sampling)

    def _chat_request(
        self, messages: Messages, sampling: SamplingParams | None, form: Mapping[str, Any]
    ) -> tuple[Request, ReplyParser]:
        encoding = self._loaded.encoding
        prompt = encoding.encode(messages, **form)
        request = self._request(prompt.token_ids, prompt.message_ends, sampling)
        return request, encoding.reply_parser(prompt)

    def _request(
        self, token_ids: tuple[int, ...], message_ends: tuple[int, ...], sampling: SamplingParams | None
    ) -> Request:
        request = Request(
            request_id=f"llm-{next(self._numbers)}",
            prompt_token_ids=token_ids,
            sampling=sampling or SamplingParams(),
            message_ends=message_ends,
        )
        self._loaded.engine.validate(request)
        return request

    def _run(self, requests: Sequence[Request]) -> list[list[RequestOutput]]:
        """All outputs of each request, in the requests' order."""
        engine = self._loaded.engine
        outputs: dict[str, list[RequestOutput]] = {request.request_id: [] for request in requests}
        try:
            for request in requests:
                engine.submit(request)
            running = len(requests)
            while running:
                for output in engine.step():
                    if output.request_id in outputs:
                        _raise_if_failed(output)
                        outputs[output.request_id].append(output)
                        running -= output.finished
        finally:
            for request in requests:
                engine.abort(request.request_id)
        return [outputs[request.request_id] for request in requests]


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Several prompts from one or several."""
    if isinstance(prompts, str):
        return [prompts]
    listed = list(prompts)
    if listed and all(isinstance(item, int) for item in listed):
        return [listed]  # type: ignore[list-item]  # just seen to be ids
    for i, prompt in enumerate(listed):
        if isinstance(prompt, int):
            raise RequestError(
                f"prompts must be text or lists of token ids. Given: a number at place {i}.", param="prompts"
            )
    return listed  # type: ignore[return-value]  # just seen to hold no bare id


def _completion(outputs: Sequence[RequestOutput]) -> Completion:
    last = outputs[-1]
    return Completion(
        text="".join(output.text for output in outputs),
        token_ids=tuple(token_id for output in outputs for token_id in output.token_ids),
        logprobs=tuple(entry for output in outputs for entry in output.logprobs),
        finish_reason=last.finish_reason or FinishReason.ABORT,
        stop_reason=last.stop_reason,
        usage=last.usage,
    )


def _raise_if_failed(output: RequestOutput) -> None:
    if output.finish_reason is FinishReason.ERROR:
        raise ExecutionError(output.error or "The request failed while it ran.")
