"""How the tokens of a request are drawn, and what they may spell."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from milepost.errors import RequestError

__all__ = ["MAX_LOGPROBS", "Grammar", "SamplingParams"]

MAX_LOGPROBS = 20
MAX_STOP_STRINGS = 16
MAX_STOP_CHARS = 4096
MAX_STOP_TOKEN_IDS = 4096
MAX_LOGIT_BIASES = 1024
MAX_LOGIT_BIAS = 100.0


class Grammar(msgspec.Struct, frozen=True, kw_only=True):
    """What a reply may spell, as a grammar in llguidance's dialect of Lark, whose top rule is ``start``.

    `milepost.grammar.texts` writes them. A token is named by its id, ``<[163589]>``; all other text is
    matched byte by byte, however it is tokenised. Where ``start`` ends the reply must: the model may then
    draw stop tokens only.
    """

    lark: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the tokens of one request are drawn; checked when built.

    ``temperature == 0`` is greedy. ``top_k == 0``, ``top_p == 1`` and ``min_p == 0`` are off.
    Penalties follow the field's usual definitions: repetition (CTRL, over prompt and output),
    presence and frequency (OpenAI, over output only). ``logprobs`` is how many alternatives are
    reported beside the drawn token, None for no log-probabilities at all. ``logit_bias`` is added to the
    logits of these token ids, before everything else. No token that ends a reply can be drawn before
    ``min_tokens`` are. ``grammar`` is what the reply may spell.

    Raises:
        RequestError: a value is outside its range; ``param`` is the field.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = {}  # msgspec gives each struct its own
    min_tokens: int = 0
    grammar: Grammar | None = None

    def __post_init__(self) -> None:
        self._check_types()
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_k", self.top_k, 0, 1 << 30)
        _in_range("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0.0:
            raise RequestError("top_p must be > 0. Given: 0. Use temperature 0 for greedy.", param="top_p")
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("repetition_penalty", self.repetition_penalty, 1e-3, 100.0)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _in_range("seed", self.seed, -(1 << 63), (1 << 63) - 1)
        if self.max_tokens is not None:
            _in_range("max_tokens", self.max_tokens, 1, 1 << 40)
        _in_range("min_tokens", self.min_tokens, 0, 1 << 40)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise RequestError(
                f"min_tokens must be at most max_tokens, {self.max_tokens}. Given: {self.min_tokens}.",
                param="min_tokens",
            )
        self._check_bias()
        if self.logprobs is not None:
            _in_range("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        self._check_stops()

    def _check_stops(self) -> None:
        if len(self.stop) > MAX_STOP_STRINGS:
            raise RequestError(
                f"stop must hold at most {MAX_STOP_STRINGS} strings. Given: {len(self.stop)}.", param="stop"
            )
        if any(not text for text in self.stop):
            raise RequestError("stop must not hold an empty string.", param="stop")
        # Preparing to search for it takes the engine's thread time that every request waits for.
        longest = max(map(len, self.stop), default=0)
        if longest > MAX_STOP_CHARS:
            raise RequestError(
                f"stop must hold strings of at most {MAX_STOP_CHARS} characters. Given: one of {longest}.",
                param="stop",
            )
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            raise RequestError(
                f"stop_token_ids must hold at most {MAX_STOP_TOKEN_IDS} ids. "
                f"Given: {len(self.stop_token_ids)}.",
                param="stop_token_ids",
            )
        if any(token_id < 0 for token_id in self.stop_token_ids):
            raise RequestError(
                f"stop_token_ids must not be negative. Given: {min(self.stop_token_ids)}.",
                param="stop_token_ids",
            )

    def _check_bias(self) -> None:
        if not isinstance(self.logit_bias, Mapping):
            raise RequestError(
                f"logit_bias must map token ids to numbers. Given: {self.logit_bias!r:.60}.",
                param="logit_bias",
            )
        if len(self.logit_bias) > MAX_LOGIT_BIASES:
            raise RequestError(
                f"logit_bias must name at most {MAX_LOGIT_BIASES} tokens. Given: {len(self.logit_bias)}.",
                param="logit_bias",
            )
        for token_id, bias in self.logit_bias.items():
            _of_type("logit_bias", token_id, (int,), "of token ids that are integers")
            _of_type("logit_bias", bias, (int, float), "of numbers")
            if token_id < 0:
                raise RequestError(
                    f"logit_bias must not hold negative token ids. Given: {token_id}.", param="logit_bias"
                )
            _in_range("logit_bias", bias, -MAX_LOGIT_BIAS, MAX_LOGIT_BIAS)

    def _check_types(self) -> None:
        """Annotations bind nobody in Python, and a wrong type would only show in the middle of a step."""
        for name in ("temperature", "top_p", "min_p", *(f"{kind}_penalty" for kind in _PENALTIES)):
            _of_type(name, getattr(self, name), (int, float), "a number")
        for name in ("top_k", "min_tokens", "seed", "max_tokens", "logprobs"):
            value = getattr(self, name)
            if value is not None or name in ("top_k", "min_tokens"):
                _of_type(name, value, (int,), "an integer")
        if not isinstance(self.ignore_eos, bool):
            raise RequestError(
                f"ignore_eos must be true or false. Given: {self.ignore_eos!r:.60}.", param="ignore_eos"
            )
        if self.grammar is not None and not isinstance(self.grammar, Grammar):
            raise RequestError(f"grammar must be a Grammar. Given: {self.grammar!r:.60}.", param="grammar")
        for name, kind, words in (("stop", str, "strings"), ("stop_token_ids", int, "integers")):
            values = getattr(self, name)
            if not isinstance(values, tuple | list) or not all(type(value) is kind for value in values):
                raise RequestError(f"{name} must be a tuple of {words}. Given: {values!r:.60}.", param=name)

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is always taken."""
        return self.temperature == 0.0


_PENALTIES = ("repetition", "presence", "frequency")


def _of_type(name: str, value: object, kinds: tuple[type, ...], words: str) -> None:
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise RequestError(f"{name} must be {words}. Given: {value!r:.60}.", param=name)


def _in_range(name: str, value: float, low: float, high: float) -> None:
    # `not (low <= value <= high)` also refuses NaN.
    if not (low <= value <= high):
        raise RequestError(f"{name} must be between {low} and {high}. Given: {value}.", param=name)
