"""/tokenize and /detokenize, and prompts that are refused before they are tokenised whole."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.errors import RequestTooLargeError
from milepost.server.endpoints.prompts import PIECE_CHARS, refuse_overlong
from tests.server.scripted_server import MAX_MODEL_LEN, MODEL, SPECIAL_IDS, ByteTokenizer, ServedEngine

MESSAGES: Any = [{"role": "user", "content": "hi"}]


def test_a_text(shared: ServedEngine) -> None:
    reply = shared.call("/tokenize", {"model": MODEL, "prompt": "né"})
    assert reply.json == {"count": 3, "max_model_len": MAX_MODEL_LEN, "tokens": [110, 0xC3, 0xA9]}


def test_text_of_markers_is_text(shared: ServedEngine) -> None:
    text = "<|open|>"
    tokens = shared.call("/tokenize", {"prompt": text, "add_special_tokens": True}).json["tokens"]
    assert tokens == list(text.encode())
    assert shared.call("/detokenize", {"tokens": tokens}).json == {"prompt": text}


def test_a_chat_is_tokenised_as_it_will_be_served(served: ServedEngine) -> None:
    body = {"messages": MESSAGES, "chat_template_kwargs": {"thinking": False}}
    found = served.call("/tokenize", body | {"return_token_strs": True}).json
    served.call("/v1/chat/completions", body)
    (request,) = served.executor.batches[0].new_requests
    assert found["tokens"] == list(request.prompt_token_ids)
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["token_strs"][0] == "<|open|>"


def test_special_tokens_have_names(shared: ServedEngine) -> None:
    tokens = [SPECIAL_IDS["<|open|>"], 0xC3, 0xA9, 0xC3]
    assert shared.call("/detokenize", {"tokens": tokens}).json == {"prompt": "<|open|>é\ufffd"}
    assert shared.call("/detokenize", {"tokens": []}).json == {"prompt": ""}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "a", "messages": MESSAGES}, "prompt"),
        ("/tokenize", {"prompt": ["a"]}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"messages": MESSAGES, "add_generation_prompt": False}, "add_generation_prompt"),
        ("/tokenize", {"messages": MESSAGES, "chat_template": "x"}, "chat_template"),
        ("/tokenize", {"messages": MESSAGES, "reasoning_effort": "x"}, "reasoning_effort"),
        ("/tokenize", {"prompt": "a", "stream": True}, "stream"),
        ("/tokenize", {"prompt": "a", "tools": [{}]}, "tools"),
        ("/tokenize", {"prompt": "a", "chat_template_kwargs": {"thinking": True}}, "chat_template_kwargs"),
        ("/detokenize", {}, "tokens"),
        ("/detokenize", {"tokens": "a"}, "tokens"),
        ("/detokenize", {"tokens": [1, 261]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {"tokens": [1 << 80]}, "tokens"),
        ("/detokenize", {"tokens": [True]}, "tokens[0]"),
    ],
    ids=str,
)
def test_a_field_at_fault_is_named(shared: ServedEngine, path: str, body: Any, param: str) -> None:
    reply = shared.call(path, body)
    assert (reply.status, reply.error["param"]) == (400, param)


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
def test_another_model(shared: ServedEngine, path: str) -> None:
    reply = shared.call(
        path, {"model": "other", "prompt": "a"} if path == "/tokenize" else {"model": "o", "tokens": []}
    )
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


def test_more_than_a_context_may_be_counted_but_not_any_number(shared: ServedEngine) -> None:
    assert shared.call("/tokenize", {"prompt": "x" * 3000}).json["count"] == 3000
    reply = shared.call("/tokenize", {"prompt": "x" * 100_000})
    assert (reply.status, reply.error["code"]) == (400, "context_length_exceeded")


class CountingTokenizer(ByteTokenizer):
    """Notes how much it was asked to encode."""

    def __init__(self) -> None:
        self.encoded = 0

    def encode(self, text: str) -> list[int]:
        self.encoded += len(text)
        return super().encode(text)


@pytest.mark.parametrize("texts", [["x" * 20_000_000], ["x" * 100] * 200_000], ids=["one", "many"])
def test_what_is_far_too_long_is_not_tokenised(texts: list[str]) -> None:
    tokenizer = CountingTokenizer()
    with pytest.raises(RequestTooLargeError, match="at most 1000 tokens"):
        refuse_overlong(tokenizer, texts, 1000, "prompt")
    assert tokenizer.encoded <= PIECE_CHARS


def test_what_may_fit_is_not_tokenised_twice() -> None:
    tokenizer = CountingTokenizer()
    refuse_overlong(tokenizer, ["x" * 4000, "y" * 4000], 1000, "prompt")
    assert tokenizer.encoded == 0


class SixteenAToken(ByteTokenizer):
    """Tokens of up to 16 bytes, which a cut can tear."""

    def encode(self, text: str) -> list[int]:
        return [0] * -(-len(text.encode()) // 16)


def test_a_text_of_long_tokens_that_fits_is_not_refused() -> None:
    refuse_overlong(SixteenAToken(), ["x" * 160_000], 10_000, "prompt")
    with pytest.raises(RequestTooLargeError):
        refuse_overlong(SixteenAToken(), ["x" * 170_000], 10_000, "prompt")


@pytest.mark.parametrize("field", ["content", "reasoning_content"])
def test_earlier_reasoning_does_not_count(shared: ServedEngine, field: str) -> None:
    earlier = {"role": "assistant", "content": "a"} | {field: "x" * 50_000}
    body = {"messages": [earlier, *MESSAGES], "chat_template_kwargs": {"thinking": False}}
    reply = shared.call("/v1/chat/completions", body | {"max_tokens": 1})
    assert (reply.status == 400) == (field == "content")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x" * 5_000_000}]}),
        ("/v1/completions", {"prompt": "x" * 5_000_000}),
        ("/v1/completions", {"prompt": [7] * 1_000_000}),
        ("/v1/completions", {"prompt": ["a", [7] * 1_000_000]}),
        ("/v1/completions", {"prompt": [[7] * 1_000_000]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}] * 100_000}),
    ],
    ids=["chat", "text", "token ids", "mixed", "lists", "many messages"],
)
def test_a_prompt_without_end_is_refused(shared: ServedEngine, path: str, body: Any) -> None:
    reply = shared.call(path, body)
    assert reply.status == 400
    assert reply.error["param"] in {"prompt", "messages"}
