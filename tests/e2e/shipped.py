"""The shipped model in whole engines, and a load of prompts of which many share what they begin with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from milepost.chat.encoding import ChatEncoding, ChatOptions, EncodedPrompt
from milepost.chat.families import chat_encoding
from milepost.chat.tokenizer import Tokenizer
from milepost.chat.tokenizer_folder import load_tokenizer
from milepost.cli.shipped_model import shipped_model
from milepost.kernels.ops import load_ops
from milepost.memory.aligned import aligned_layout
from milepost.memory.layout import TiledLayout, paged_layout
from milepost.models import load_model
from milepost.types import Request, SamplingParams
from tests.e2e.engines import Toy
from training.cases import Case, make_cases

OUTPUT_TOKENS = 12
GREEDY = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS)

Messages = list[dict[str, Any]]


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def messages_of(case: Case) -> Messages:
    return [{"role": message.role, "content": message.content} for message in case.messages]


@dataclass(frozen=True)
class Shipped:
    """The shipped model with its tokenizer and its chat encoding."""

    toy: Toy
    tokenizer: Tokenizer
    encoding: ChatEncoding

    @property
    def stop_token_ids(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(self.toy.model.spec.stop_token_ids + self.encoding.stop_token_ids))

    def on(self, layout: TiledLayout) -> Toy:
        """The model on pages of another layout."""
        return Toy(self.toy.folder, self.toy.model, layout)

    def on_aligned(self) -> Toy:
        return self.on(aligned_layout(self.toy.model.spec, kv_itemsize=4, conv_itemsize=4))

    def count(self, text: str) -> int:
        return len(self.tokenizer.encode(text))

    @cached_property
    def recalls(self) -> list[Case]:
        """Conversations that end with a question whose answer stands in their first message."""
        return make_cases("recall", 3, 5, self.count, distance=96)

    def chat(self, name: str, messages: Messages, sampling: SamplingParams = GREEDY, **form: Any) -> Request:
        return request_of(name, self.encoding.encode(messages, ChatOptions(**form)), sampling)

    def load(self, sampling: SamplingParams = GREEDY) -> list[Request]:
        """Prompts that resend, go on, fork, part at odd tokens, or have nothing in common."""
        base, other, _ = (messages_of(case) for case in self.recalls)
        edited = [*base[:2], user("The river is long."), *base[3:]]
        going_on = [*base, assistant(self.recalls[0].answer), user("Hello!")]
        in_words = [*base[:-1], user(f"{base[-1]['content']} Answer in a sentence.")]
        ids = self.encoding.encode(base).token_ids
        plain = {"odd": ids[:101] + ids[7:40], "cut": ids[:-1], "short": ids[:5], "unit": ids[:16]}
        return [
            self.chat("ask", base, sampling),
            self.chat("other", other, sampling),
            self.chat("resend", base, sampling),
            self.chat("sentence", in_words, sampling),
            self.chat("edited", edited, sampling),
            self.chat("next", going_on, sampling),
            self.chat("thinking", base, sampling, thinking=True),
            *(request_of(name, plain_prompt(tokens), sampling) for name, tokens in plain.items()),
        ]


def plain_prompt(token_ids: tuple[int, ...]) -> EncodedPrompt:
    return EncodedPrompt(token_ids=token_ids, message_ends=())


def request_of(name: str, prompt: EncodedPrompt, sampling: SamplingParams) -> Request:
    return Request(
        request_id=name,
        prompt_token_ids=prompt.token_ids,
        sampling=sampling,
        message_ends=prompt.message_ends,
        output_reusable=prompt.output_reusable,
    )


def load_shipped(dtype: torch.dtype = torch.float32) -> Shipped:
    """Blocks of 64 tokens, the cache kept in the weights' dtype."""
    folder = shipped_model()
    model = load_model(folder, dtype=dtype, ops=load_ops("cpu"))
    layout = paged_layout(model.spec, kv_itemsize=dtype.itemsize, conv_itemsize=dtype.itemsize)
    tokenizer = load_tokenizer(folder, model_vocab_size=model.spec.vocab_size)
    return Shipped(Toy(folder, model, layout), tokenizer, chat_encoding(model.spec.family.value, tokenizer))
