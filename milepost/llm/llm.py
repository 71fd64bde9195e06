"""The engine for Python users: prompts and conversations in, text out, in the caller's own thread."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import count
from types import TracebackType
from typing import Any

import msgspec

from milepost.chat.encoding import ChatOptions, EncodedPrompt
from milepost.chat.reply import ReplyParser, collect_reply
from milepost.chat.tokenizer import Tokenizer
from milepost.config import EngineConfig, ResolvedConfig
from milepost.engine.mailboxes import Mailboxes
from milepost.engine.reports import EngineStats
from milepost.error_text import one_of
from milepost.errors import ConfigError, RequestError
from milepost.llm.loading import load_engine
from milepost.llm.results import ChatCompletion, Completion, completion_of
from milepost.llm.streams import ChatStream, TokenStream, raise_if_failed
from milepost.memory.layout import TiledLayout
from milepost.models.weights import Progress
from milepost.prefix.reports import Explanation
from milepost.types import Request, RequestOutput, SamplingParams, check_cache_salt

__all__ = ["LLM"]

Prompt = str | Sequence[int]
Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A model ready to answer, from any threads. Use it as a context manager, or `close` it.

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
        self._mailboxes = Mailboxes(self._loaded.engine)
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
    def layout(self) -> TiledLayout:
        """How states and KV lie in pages."""
        return self._loaded.layout

    @property
    def config(self) -> ResolvedConfig:
        """The engine's numbers."""
        return self._loaded.config

    def stats(self) -> EngineStats:
        """The engine's counters."""
        return self._mailboxes.ask(lambda engine: engine.stats())

    def close(self) -> None:
        """Give the arena's memory back; the object answers nothing afterwards. Safe to call twice."""
        self._mailboxes.close()

    def explain(
        self,
        prompt: Prompt | None = None,
        *,
        messages: Messages | None = None,
        cache_salt: str = "",
        **form: Any,  # noqa: ANN401  # as of `chat`
    ) -> Explanation:
        """What a prompt or a conversation would hit in the prefix cache now, and why not more.

        Args:
            prompt: text or token ids; or
            messages: a conversation.
            cache_salt: as of `generate`.
            form: fields of `milepost.chat.encoding.ChatOptions`, with messages.

        Raises:
            RequestError: it can't be served, or not exactly one of prompt and messages is given.
            ConfigError: the prefix cache is off.
        """
        if (prompt is None) == (messages is None):
            given = "neither" if prompt is None else "both"
            raise RequestError(f"Give a prompt or messages, one of them. Given: {given}.", param="prompt")
        if messages is not None:
            request, _ = self._chat_request(messages, None, form, cache_salt)
        else:
            assert prompt is not None  # just seen
            if form:
                raise ConfigError(f"{next(iter(form))} means something with messages only. Leave it out.")
            request = self._prompt_request(prompt, None, cache_salt)
        ids = request.prompt_token_ids
        return self._mailboxes.ask(lambda engine: engine.explain(ids, cache_salt=cache_salt))

    def reset_cache(self) -> int:
        """Drop all that the prefix cache holds; returns the number of snapshots.

        Raises:
            ConfigError: the prefix cache is off.
        """
        return self._mailboxes.ask(lambda engine: engine.reset_cache())

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling: SamplingParams | None = None,
        *,
        cache_salt: str = "",
    ) -> list[Completion]:
        """Continue prompts, all of them together.

        Args:
            prompts: one prompt or several, each as text or as token ids.
            sampling: how tokens are drawn and when a reply ends.
            cache_salt: only calls with the same one resume from each other's snapshots.

        Returns:
            one completion a prompt, in their order.

        Raises:
            RequestTooLargeError: a prompt is over the limit; nothing is run.
            RequestError: a prompt is empty or holds an id outside the vocabulary, or the grammar can't be
                compiled; nothing is run.
            ExecutionError: a request failed while it ran; the others are aborted.
        """
        listed = _listed(prompts)
        requests = [self._prompt_request(prompt, sampling, cache_salt) for prompt in listed]
        return [completion_of(outputs) for outputs in self._run(requests)]

    def chat(
        self,
        messages: Messages,
        sampling: SamplingParams | None = None,
        *,
        cache_salt: str = "",
        **form: Any,  # noqa: ANN401
    ) -> ChatCompletion:
        """Answer a conversation.

        Args:
            messages: OpenAI-style messages.
            sampling: how tokens are drawn and when the reply ends; a grammar is of the reply's content.
            cache_salt: as of `generate`.
            form: fields of `milepost.chat.encoding.ChatOptions`, such as ``thinking=True``.

        Raises:
            RequestError, ExecutionError: as `generate`.
        """
        return self.chat_all([messages], sampling, cache_salt=cache_salt, **form)[0]

    def chat_all(
        self,
        conversations: Sequence[Messages],
        sampling: SamplingParams | None = None,
        *,
        cache_salt: str = "",
        **form: Any,  # noqa: ANN401  # the encoding checks names and values
    ) -> list[ChatCompletion]:
        """Answer conversations, all of them together; see `chat`."""
        pairs = [self._chat_request(messages, sampling, form, cache_salt) for messages in conversations]
        runs = self._run([request for request, _ in pairs])
        return [
            ChatCompletion(
                reply=collect_reply([parser.feed(output) for output in outputs]),
                completion=completion_of(outputs),
            )
            for (_, parser), outputs in zip(pairs, runs, strict=True)
        ]

    def stream(
        self, prompt: Prompt, sampling: SamplingParams | None = None, *, cache_salt: str = ""
    ) -> TokenStream:
        """Continue one prompt, token by token; see `generate` for arguments and errors."""
        request = self._prompt_request(prompt, sampling, cache_salt)
        return TokenStream(self._mailboxes, request)

    def stream_chat(
        self,
        messages: Messages,
        sampling: SamplingParams | None = None,
        *,
        cache_salt: str = "",
        **form: Any,  # noqa: ANN401
    ) -> ChatStream:
        """Answer a conversation as it comes; see `chat` for arguments and errors."""
        request, parser = self._chat_request(messages, sampling, form, cache_salt)
        return ChatStream(TokenStream(self._mailboxes, request), parser)

    def _prompt_request(self, prompt: Prompt, sampling: SamplingParams | None, cache_salt: str) -> Request:
        if isinstance(prompt, str):
            prompt = self.tokenizer.encode(prompt)
        elif isinstance(prompt, bytes | Mapping) or not isinstance(prompt, Iterable):
            raise RequestError(
                f"A prompt must be text or token ids. Given: {type(prompt).__name__}.", param="prompts"
            )
        return self._request(EncodedPrompt(token_ids=tuple(prompt), message_ends=()), sampling, cache_salt)

    def _chat_request(
        self, messages: Messages, sampling: SamplingParams | None, form: Mapping[str, Any], cache_salt: str
    ) -> tuple[Request, ReplyParser]:
        encoding = self._loaded.encoding
        sampling = sampling or SamplingParams()
        options = _chat_options(form)
        if sampling.grammar is not None:
            # What the reply's content may spell; the encoding adds the markers around it.
            self._loaded.grammars.check(sampling.grammar)
            if options.content_grammar is not None:
                raise RequestError("Give a grammar or a content_grammar. Given: both.", param="grammar")
            options = msgspec.structs.replace(options, content_grammar=sampling.grammar)
        prompt = encoding.encode(messages, options)
        if options.content_grammar is not None and prompt.grammar is None:
            raise RequestError("This model's chat encoding takes no grammar.", param="grammar")
        sampling = msgspec.structs.replace(sampling, grammar=prompt.grammar)
        return self._request(prompt, sampling, cache_salt), encoding.reply_parser(prompt)

    def _request(self, prompt: EncodedPrompt, sampling: SamplingParams | None, cache_salt: str) -> Request:
        request = Request(
            request_id=f"llm-{next(self._numbers)}",
            prompt_token_ids=prompt.token_ids,
            sampling=sampling or SamplingParams(),
            message_ends=prompt.message_ends,
            cache_salt=check_cache_salt(cache_salt),
            output_reusable=prompt.output_reusable,
        )
        if request.sampling.grammar is not None:
            self._loaded.grammars.check(request.sampling.grammar)
        self._loaded.engine.limits.validate(request)
        return request

    def _run(self, requests: Sequence[Request]) -> list[list[RequestOutput]]:
        """All outputs of each request, in the requests' order."""
        outputs: dict[str, list[RequestOutput]] = {request.request_id: [] for request in requests}
        try:
            for request in requests:
                self._mailboxes.submit(request)
            running = len(requests)
            while running:
                for output in self._mailboxes.take(outputs):
                    raise_if_failed(output)
                    outputs[output.request_id].append(output)
                    running -= output.finished
        finally:
            for request in requests:
                self._mailboxes.abort(request.request_id)
        return [outputs[request.request_id] for request in requests]


def _listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Several prompts from one or several."""
    if isinstance(prompts, str):
        return [prompts]
    if isinstance(prompts, bytes | Mapping) or not isinstance(prompts, Iterable):
        raise RequestError(
            f"prompts must be text or lists of token ids. Given: {type(prompts).__name__}.", param="prompts"
        )
    listed = list(prompts)
    if listed and all(isinstance(item, int) for item in listed):
        return [listed]  # type: ignore[list-item]  # just seen to be ids
    for i, prompt in enumerate(listed):
        if isinstance(prompt, int):
            raise RequestError(
                f"prompts must be text or lists of token ids. Given: a number at place {i}.", param="prompts"
            )
    return listed  # type: ignore[return-value]  # just seen to hold no bare id


def _chat_options(form: Mapping[str, Any]) -> ChatOptions:
    for name in form:
        if name not in ChatOptions.__struct_fields__:
            raise ConfigError(one_of("An option of a chat", name, ChatOptions.__struct_fields__))
    return ChatOptions(**form)
