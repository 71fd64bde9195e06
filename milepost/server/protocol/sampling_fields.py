"""The fields that both generating endpoints have in common, and what they mean to the engine."""

from __future__ import annotations

import hashlib
import math

import msgspec

from milepost.errors import RequestError
from milepost.server.protocol.fields import ANY_LABELS, ANY_STRING, HarmlessValues
from milepost.server.protocol.structured import StructuredFields
from milepost.types import Grammar, SamplingParams, check_cache_salt

__all__ = ["COMMON_HARMLESS", "SamplingFields", "StreamOptions", "seed_of_choice"]

MAX_PRIORITY = (1 << 31) - 1

# What OpenAI's clients and vLLM's send to both endpoints and this server does not do.
COMMON_HARMLESS: HarmlessValues = {
    "user": (ANY_STRING,),
    "metadata": (ANY_LABELS,),
    "safety_identifier": (ANY_STRING,),
    "prompt_cache_key": (ANY_STRING,),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "add_special_tokens": (True, False),  # these tokenizers have none that they would add to a text
    "allowed_token_ids": (),
    "bad_words": ([],),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    "include_stop_str_in_output": (False,),
    "kv_transfer_params": (),
    "length_penalty": (1.0, 1),
    "logits_processors": (),
    "prompt_logprobs": (),
    "request_id": (),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "thinking_token_budget": (),
    "truncate_prompt_tokens": (),
    "use_beam_search": (False,),
    "vllm_xargs": (),
}


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a stream tells beside the reply.

    ``include_usage``: one more chunk at the end, with the token counts and no choices.
    ``continuous_usage_stats``: with it, every chunk has the token counts so far (vLLM's).
    ``include_obfuscation`` may only be false: nothing is padded.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False


class SamplingFields(StructuredFields, frozen=True, kw_only=True):
    """What both endpoints have in common.

    ``min_tokens`` to ``cache_salt`` are vLLM's, beyond OpenAI's protocol, and ``timeout`` is our own: seconds
    that the request may take from its arrival to its end, within the server's own limit. Without a
    ``model`` the served one is meant.
    """

    model: str | None = None
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[str, float] = msgspec.field(default_factory=dict)
    seed: int | None = None
    stop: str | list[str] = msgspec.field(default_factory=list)
    stream: bool = False
    stream_options: StreamOptions | None = None
    min_tokens: int = 0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    ignore_eos: bool = False
    stop_token_ids: list[int] = msgspec.field(default_factory=list)
    return_token_ids: bool = False
    priority: int = 0
    cache_salt: str = ""
    timeout: float | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a chunk of token counts."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of a stream has the token counts so far."""
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats

    def check(self) -> None:
        """Check what no single type says.

        Raises:
            RequestError: with the field at fault.
        """
        if self.stream_options is not None and not self.stream:
            raise RequestError(
                "stream_options only means something with stream: true. Leave it out.", param="stream_options"
            )
        if self.stream_options is not None and self.stream_options.include_obfuscation:
            raise RequestError(
                "stream_options.include_obfuscation may only be false: streams are not padded. Leave it out.",
                param="stream_options.include_obfuscation",
            )
        if self.n < 1:
            raise RequestError(f"n must be at least 1. Given: {self.n}.", param="n")
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise RequestError(
                f"priority must be between {-MAX_PRIORITY} and {MAX_PRIORITY}. Given: {self.priority}.",
                param="priority",
            )
        if self.timeout is not None and not 0 < self.timeout < math.inf:
            raise RequestError(
                f"timeout must be more than 0 seconds. Given: {self.timeout}.", param="timeout"
            )
        check_cache_salt(self.cache_salt)
        self.constraint()

    def sampling(
        self, *, max_tokens: int | None, logprobs: int | None, grammar: Grammar | None
    ) -> SamplingParams:
        """The engine's form of the fields; which tokens end a reply of this model, the engine knows.

        Args:
            max_tokens: the limit that the endpoint derived.
            logprobs: alternatives per token, or None.
            grammar: what the reply may spell, or None.

        Raises:
            RequestError: a value is out of range.
        """
        return SamplingParams(
            temperature=self.temperature,
            top_k=0 if self.top_k == -1 else self.top_k,  # -1 is the field's other spelling of "off"
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=self.seed,
            max_tokens=max_tokens,
            stop=(self.stop,) if isinstance(self.stop, str) else tuple(self.stop),
            stop_token_ids=tuple(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            logprobs=logprobs,
            logit_bias={_token_id(key): bias for key, bias in self.logit_bias.items()},
            min_tokens=self.min_tokens,
            grammar=grammar,
        )


def seed_of_choice(seed: int | None, choice: int) -> int | None:
    """The seed of the choice of that index: choice 0 draws as a request for one choice would.

    The others' seeds are the first 8 bytes of BLAKE2b of "seed:index", so that neighbouring seeds of a
    client's own counting don't draw the same.
    """
    if seed is None or choice == 0:
        return seed
    digest = hashlib.blake2b(f"{seed}:{choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _token_id(key: str) -> int:
    if not (key.isascii() and key.isdecimal() and len(key) < 20):
        raise RequestError(
            f"logit_bias must map token ids, as text, to numbers. Given: {key!r:.60}.", param="logit_bias"
        )
    return int(key)
