"""``POST /v1/chat/completions``."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from milepost.chat.encoding import ChatEncoding, ChatOptions, EncodedPrompt
from milepost.chat.messages import ToolCall
from milepost.chat.reply import Reply, ReplyDelta, ReplyParser, collect_reply
from milepost.server.access.tenants import arrival_of, tenant_of
from milepost.server.endpoints.reading import fields_renamed, front_of, new_id, read_request
from milepost.server.front import Front, Run
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
    ToolCallBody,
    UsageBody,
    usage_body,
)
from milepost.server.streaming import EventStream, event, unless_disconnected
from milepost.types import FinishReason, Request, TokenLogprobs

__all__ = ["chat_completions"]


async def chat_completions(http: HttpRequest) -> Response:
    """Answer a conversation, whole or as a stream."""
    front = front_of(http)
    asked = await read_request(http, ChatRequest, CHAT_HARMLESS)
    encoding = front.services.encoding
    with fields_renamed(asked.wire_names):
        # Away from the event loop: a long conversation takes long to tokenise.
        prompt = await asyncio.to_thread(_encode, encoding, asked)
        exchange = _Exchange(front, asked, prompt, encoding.reply_parser(prompt))
        run = front.submit(exchange.request(), "chat", tenant=tenant_of(http), arrival=arrival_of(http))
    if asked.stream:
        return EventStream(exchange.chunks(run), [run])
    body = await unless_disconnected(http, exchange.whole(run), [run])
    return Response(msgspec.json.encode(body), media_type="application/json")


def _encode(encoding: ChatEncoding, asked: ChatRequest) -> EncodedPrompt:
    options = ChatOptions(
        thinking=asked.chat_template_kwargs.thinking,
        thinking_effort=asked.reasoning_effort,
        tools=asked.tools or None,
        tool_choice=asked.tool_choice,
    )
    return encoding.encode(asked.messages, options)


@dataclass
class _Exchange:
    """One question and its answer."""

    front: Front
    asked: ChatRequest
    prompt: EncodedPrompt
    parser: ReplyParser
    id: str = field(default_factory=lambda: new_id("chatcmpl"))
    created: int = field(default_factory=lambda: int(time.time()))
    num_tool_calls: int = 0

    def request(self) -> Request:
        """What the engine is asked."""
        return Request(
            request_id=self.id,
            prompt_token_ids=self.prompt.token_ids,
            sampling=self.asked.to_sampling(),
            priority=self.asked.priority,
            message_ends=self.prompt.message_ends,
            cache_salt=self.asked.cache_salt,
            output_reusable=self.prompt.output_reusable,
        )

    async def whole(self, run: Run) -> ChatCompletion:
        """The reply in one piece."""
        deltas: list[ReplyDelta] = []
        drawn: list[TokenLogprobs] = []
        async for output in run:
            deltas.append(self.parser.feed(output))
            drawn.extend(output.logprobs)
        reply = collect_reply(deltas)
        self.num_tool_calls = len(reply.tool_calls)
        choice = ChatChoice(
            message=_message(reply),
            logprobs=self._logprobs(drawn),
            finish_reason=self._finish_reason(output.finish_reason),
        )
        return ChatCompletion(
            id=self.id,
            created=self.created,
            model=self.asked.model,
            choices=[choice],
            usage=usage_body([output.usage]),
            system_fingerprint=self.front.services.system_fingerprint,
        )

    async def chunks(self, run: Run) -> AsyncGenerator[bytes]:
        """The reply as events: the role, what each step adds, the finish reason, the token counts."""
        yield self._chunk(ChatDelta(role="assistant", content=""))
        async for output in run:
            delta, logprobs = self.parser.feed(output), self._logprobs(output.logprobs)
            if delta or (logprobs and logprobs.content):
                yield self._chunk(self._delta(delta), logprobs)
        yield self._chunk(ChatDelta(), finish_reason=self._finish_reason(output.finish_reason))
        if self.asked.include_usage:
            yield self._event([], usage_body([output.usage]))

    def _delta(self, delta: ReplyDelta) -> ChatDelta:
        calls = []
        for call in delta.tool_calls:
            calls.append(_tool_call(call, self.num_tool_calls))
            self.num_tool_calls += 1
        # A step may add nothing but log-probabilities: then its content is "".
        content = delta.content if delta.content or not delta else UNSET
        return ChatDelta(
            content=content, reasoning_content=delta.reasoning or UNSET, tool_calls=calls or UNSET
        )

    def _chunk(
        self, delta: ChatDelta, logprobs: ChatLogprobs | None = None, finish_reason: str | None = None
    ) -> bytes:
        choice = ChatChunkChoice(delta=delta, logprobs=logprobs, finish_reason=finish_reason)
        return self._event([choice], None if self.asked.include_usage else UNSET)

    def _event(self, choices: list[ChatChunkChoice], usage: UsageBody | UnsetType | None) -> bytes:
        return event(
            ChatChunk(
                id=self.id,
                created=self.created,
                model=self.asked.model,
                choices=choices,
                usage=usage,
                system_fingerprint=self.front.services.system_fingerprint,
            )
        )

    def _logprobs(self, drawn: list[TokenLogprobs] | tuple[TokenLogprobs, ...]) -> ChatLogprobs | None:
        if not self.asked.logprobs:
            return None
        return chat_logprobs(self.front.services.tokenizer, drawn)

    def _finish_reason(self, reason: FinishReason | None) -> str:
        assert reason is not None, "the front ends every run with a reason"
        if reason is FinishReason.STOP and self.num_tool_calls:
            return "tool_calls"
        return reason.value


def _message(reply: Reply) -> ChatMessage:
    calls = [_tool_call(call) for call in reply.tool_calls]
    return ChatMessage(
        content=None if calls and not reply.content else reply.content,
        reasoning_content=UNSET if reply.reasoning is None else reply.reasoning,
        tool_calls=calls or UNSET,
    )


def _tool_call(call: ToolCall, index: int | None = None) -> ToolCallBody:
    return ToolCallBody(
        id=call.id,
        function=FunctionCall(name=call.name, arguments=call.arguments),
        index=UNSET if index is None else index,
    )
