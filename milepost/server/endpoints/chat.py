"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from milepost.chat.calls import ToolCallDelta
from milepost.chat.encoding import EncodedPrompt
from milepost.chat.messages import ToolCall
from milepost.chat.reply import Reply, ReplyDelta, ReplyParser, collect_reply
from milepost.server.endpoints.generation import (
    answer,
    check_num_choices,
    choice_requests,
    outputs_of,
    usage_of_chunk,
)
from milepost.server.endpoints.prompts import checked_grammar, encode_chat
from milepost.server.endpoints.reading import fields_renamed, front_of, in_thread, new_id, read_request
from milepost.server.endpoints.usage import Tally
from milepost.server.front import Front, Run
from milepost.server.protocol.chat_fields import chat_options
from milepost.server.protocol.logprobs import chat_logprobs
from milepost.server.protocol.requests import CHAT_HARMLESS, ChatRequest
from milepost.server.protocol.responses import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    FunctionCall,
    FunctionCallDelta,
    ToolCallBody,
    ToolCallDeltaBody,
    UsageBody,
)
from milepost.types import FinishReason, Request, RequestOutput, SamplingParams, TokenLogprobs

__all__ = ["chat_completions"]


async def chat_completions(http: HttpRequest) -> Response:
    """Answer a conversation, whole or as a stream."""
    front = front_of(http)
    asked = await read_request(http, ChatRequest, CHAT_HARMLESS)
    check_num_choices(asked, 1, front.services.config.max_choices)
    with fields_renamed(asked.wire_names):
        # Away from the event loop: a long conversation takes long to tokenise.
        is_long = bool(asked.tools) or asked.constraint() is not None
        prompt, sampling = await in_thread(http, lambda: _prepare(front, asked), is_long=is_long)
        return await answer(http, front, _Chat(front, asked, prompt, sampling))


def _prepare(front: Front, asked: ChatRequest) -> tuple[EncodedPrompt, SamplingParams]:
    services, field = front.services, asked.constraint()
    # By itself too: only what is a grammar of its own can't reach out of the place that it gets in the reply.
    content = checked_grammar(services, asked.guided(), field)
    options = chat_options(asked, response_format=asked.response_format, content_grammar=content)
    prompt = encode_chat(services, asked.messages, options)
    grammar = checked_grammar(services, prompt.grammar, field or "tools")
    return prompt, asked.to_sampling(grammar)


@dataclass
class _Choice:
    """One reply while it comes."""

    parser: ReplyParser
    num_tool_calls: int = 0
    deltas: list[ReplyDelta] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""

    def take(self, output: RequestOutput) -> ReplyDelta:
        """What the output adds to the reply."""
        delta = self.parser.feed(output)
        self.num_tool_calls += sum(call.name is not None for call in delta.tool_calls)
        if output.finish_reason is not None:
            # A stop string may stand in a call's arguments.
            whole = output.finish_reason is FinishReason.STOP and not delta.cut_call
            called = whole and self.num_tool_calls > 0
            self.finish_reason = "tool_calls" if called else output.finish_reason.value
        return delta

    def keep(self, output: RequestOutput) -> ReplyDelta:
        """Take an output for a reply in one piece."""
        delta = self.take(output)
        self.deltas.append(delta)
        self.logprobs.extend(output.logprobs)
        self.token_ids.extend(output.token_ids)
        return delta


class _Chat:
    """One conversation and the replies to it."""

    endpoint = "chat"

    def __init__(
        self, front: Front, asked: ChatRequest, prompt: EncodedPrompt, sampling: SamplingParams
    ) -> None:
        self.asked = asked
        self._services = front.services
        self._prompt = prompt
        self._sampling = sampling
        self._id = new_id("chatcmpl")
        self._created = int(time.time())
        self._choices = [_Choice(front.services.encoding.reply_parser(prompt)) for _ in range(asked.n)]
        self._tally = Tally([len(prompt.token_ids)], asked.n)

    def requests(self) -> list[Request]:
        """What the engine is asked."""
        request = Request(
            request_id=self._id,
            prompt_token_ids=self._prompt.token_ids,
            sampling=self._sampling,
            priority=self.asked.priority,
            message_ends=self._prompt.message_ends,
            cache_salt=self.asked.cache_salt,
            output_reusable=self._prompt.output_reusable,
        )
        return choice_requests(request, self.asked.n)

    async def whole(self, runs: Sequence[Run]) -> ChatCompletion:
        """The replies in one piece."""
        async for index, output in outputs_of(runs):
            delta = self._choices[index].keep(output)
            self._tally.note(index, output.usage, delta.reasoning_tokens)
        return ChatCompletion(
            id=self._id,
            created=self._created,
            model=self._services.model_name,
            choices=[self._whole_choice(index, choice) for index, choice in enumerate(self._choices)],
            usage=self._tally.body(),
            system_fingerprint=self._services.system_fingerprint,
            prompt_token_ids=self._prompt.token_ids if self.asked.return_token_ids else UNSET,
        )

    def _whole_choice(self, index: int, choice: _Choice) -> ChatChoice:
        return ChatChoice(
            index=index,
            message=_message(collect_reply(choice.deltas)),
            logprobs=self._logprobs(choice.logprobs),
            finish_reason=choice.finish_reason,
            token_ids=tuple(choice.token_ids) if self.asked.return_token_ids else UNSET,
        )

    async def chunks(self, runs: Sequence[Run]) -> AsyncGenerator[ChatChunk]:
        """The replies as they come: the roles, what each step adds, the finish reasons, the token counts."""
        prompt_token_ids = self._prompt.token_ids if self.asked.return_token_ids else UNSET
        for index in range(len(runs)):
            yield self._chunk(
                index, ChatDelta(role="assistant", content=""), prompt_token_ids=prompt_token_ids
            )
            prompt_token_ids = UNSET
        async for index, output in outputs_of(runs):
            choice = self._choices[index]
            delta = choice.take(output)
            self._tally.note(index, output.usage, delta.reasoning_tokens)
            logprobs = self._logprobs(output.logprobs)
            if delta or (logprobs and logprobs.content) or (self.asked.return_token_ids and output.token_ids):
                yield self._chunk(index, _delta(delta), logprobs, token_ids=output.token_ids)
            if output.finished:
                yield self._chunk(index, ChatDelta(), finish_reason=choice.finish_reason)
        if self.asked.include_usage:
            yield self._with_choices([], self._tally.body())

    def _chunk(
        self,
        index: int,
        delta: ChatDelta,
        logprobs: ChatLogprobs | None = None,
        *,
        finish_reason: str | None = None,
        token_ids: tuple[int, ...] = (),
        prompt_token_ids: tuple[int, ...] | UnsetType = UNSET,
    ) -> ChatChunk:
        choice = ChatChunkChoice(
            index=index,
            delta=delta,
            logprobs=logprobs,
            finish_reason=finish_reason,
            token_ids=token_ids if token_ids and self.asked.return_token_ids else UNSET,
        )
        return self._with_choices([choice], usage_of_chunk(self.asked, self._tally), prompt_token_ids)

    def _with_choices(
        self,
        choices: list[ChatChunkChoice],
        usage: UsageBody | UnsetType | None,
        prompt_token_ids: tuple[int, ...] | UnsetType = UNSET,
    ) -> ChatChunk:
        return ChatChunk(
            id=self._id,
            created=self._created,
            model=self._services.model_name,
            choices=choices,
            usage=usage,
            system_fingerprint=self._services.system_fingerprint,
            prompt_token_ids=prompt_token_ids,
        )

    def _logprobs(self, drawn: Sequence[TokenLogprobs]) -> ChatLogprobs | None:
        return chat_logprobs(self._services.tokenizer, drawn) if self.asked.logprobs else None


def _delta(delta: ReplyDelta) -> ChatDelta:
    calls = [_tool_call_delta(call) for call in delta.tool_calls]
    # A step may add nothing but log-probabilities: then its content is "".
    content = delta.content if delta.content or not delta else UNSET
    return ChatDelta(content=content, reasoning_content=delta.reasoning or UNSET, tool_calls=calls or UNSET)


def _message(reply: Reply) -> ChatMessage:
    calls = [_tool_call(call) for call in reply.tool_calls]
    return ChatMessage(
        content=None if calls and not reply.content else reply.content,
        reasoning_content=UNSET if reply.reasoning is None else reply.reasoning,
        tool_calls=calls or UNSET,
    )


def _tool_call(call: ToolCall) -> ToolCallBody:
    return ToolCallBody(id=call.id, function=FunctionCall(name=call.name, arguments=call.arguments))


def _tool_call_delta(call: ToolCallDelta) -> ToolCallDeltaBody:
    if call.name is None:
        return ToolCallDeltaBody(index=call.index, function=FunctionCallDelta(arguments=call.arguments))
    return ToolCallDeltaBody(
        index=call.index,
        id=call.id or UNSET,
        type="function",
        function=FunctionCallDelta(name=call.name, arguments=call.arguments),
    )
