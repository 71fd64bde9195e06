"""``POST /tokenize`` and ``POST /detokenize``, as vLLM has them."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec import UNSET
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from milepost.chat.tokenizer import Tokenizer
from milepost.errors import RequestError
from milepost.server.endpoints.prompts import encode_chat, most_prompt_tokens, refuse_overlong
from milepost.server.endpoints.reading import check_model, fields_renamed, front_of, in_thread, read_fields
from milepost.server.protocol.chat_fields import CHAT_WIRE_NAMES, chat_options
from milepost.server.protocol.token_requests import (
    TOKENIZE_HARMLESS,
    DetokenizeReply,
    DetokenizeRequest,
    TokenizeReply,
    TokenizeRequest,
)
from milepost.server.services import Services

__all__ = ["detokenize", "tokenize"]

# Whoever counts tokens may be about to shorten a text, so more than one context may be asked about.
MAX_CONTEXTS = 4


async def tokenize(http: HttpRequest) -> Response:
    """Token ids of a prompt or a chat, which need not fit the context."""
    services = front_of(http).services
    asked = await read_fields(http, TokenizeRequest, TOKENIZE_HARMLESS)
    check_model(asked.model, services.model_name)
    asked.check()
    with fields_renamed({**CHAT_WIRE_NAMES, "prompt": "prompt" if asked.messages is None else "messages"}):
        body = await in_thread(http, lambda: _tokenize(services, asked))
    return Response(body, media_type="application/json")


async def detokenize(http: HttpRequest) -> Response:
    """The text of token ids."""
    services = front_of(http).services
    asked = await read_fields(http, DetokenizeRequest, {})
    check_model(asked.model, services.model_name)
    body = await in_thread(http, lambda: _detokenize(services.tokenizer, asked.tokens))
    return Response(body, media_type="application/json")


def _tokenize(services: Services, asked: TokenizeRequest) -> bytes:
    most, tokenizer = most_prompt_tokens(services), services.tokenizer
    if asked.messages is not None:
        token_ids = encode_chat(
            services, asked.messages, chat_options(asked), contexts=MAX_CONTEXTS
        ).token_ids
    else:
        prompt = asked.prompt or ""
        refuse_overlong(tokenizer, [prompt], MAX_CONTEXTS * most, "prompt")
        token_ids = tuple(tokenizer.encode(prompt))
    names = [_name(tokenizer, token_id) for token_id in token_ids] if asked.return_token_strs else UNSET
    reply = TokenizeReply(
        count=len(token_ids),
        max_model_len=services.engine.limits.max_length,
        tokens=token_ids,
        token_strs=names,
    )
    return msgspec.json.encode(reply)


def _detokenize(tokenizer: Tokenizer, token_ids: Sequence[int]) -> bytes:
    if token_ids and not 0 <= min(token_ids) <= max(token_ids) < tokenizer.vocab_size:
        raise RequestError(
            f"tokens must be between 0 and {tokenizer.vocab_size - 1}. "
            f"Given: {min(token_ids)} to {max(token_ids)}.",
            param="tokens",
        )
    # Ordinary tokens are joined before they are decoded: one may hold half a character.
    text = bytearray()
    for token_id in token_ids:
        name = tokenizer.special_name(token_id)
        text += tokenizer.token_bytes(token_id) if name is None else name.encode()
    return msgspec.json.encode(DetokenizeReply(prompt=text.decode("utf-8", "replace")))


def _name(tokenizer: Tokenizer, token_id: int) -> str:
    name = tokenizer.special_name(token_id)
    return tokenizer.token_bytes(token_id).decode("utf-8", "replace") if name is None else name
