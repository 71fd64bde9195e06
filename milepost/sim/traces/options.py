"""How a trace is read: its form, which of its requests, when they arrive."""

from __future__ import annotations

import msgspec

from milepost.error_text import one_of
from milepost.errors import ConfigError

__all__ = ["AUTO", "FORMS", "MAX_TOKENS", "TraceOptions"]

AUTO = "auto"
FORMS = ("mooncake", "claude-code", "qwen-bailian", "token-ids", "chat", "azure")

MAX_TOKENS = 1 << 24
"""Of one prompt or output: more than any context that is served."""

_MAX_FACTOR = 1e6


class TraceOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a trace is read; checked when built. The same options give the same requests, always.

    Attributes:
        form: one of `FORMS`, or "auto" to tell it from the first rows.
        skip_bad: leave rows that can't be read out, and count them, instead of stopping at the first.
        time_scale: factor on all times: 2 is twice as slow. The starts of sessions are stretched with them.
        first: only so many requests. They are the file's first, or in a form of sessions, which overlap,
            the first to arrive. None for all.
        session_rate: sessions a second that start (a Poisson process), in forms that only know times
            within a session.
        seed: of their starts.
        shared_prompt_tokens: tokens, the same for all, that are put in front of each prompt, as a system
            prompt would be. A multiple of the trace's block where tokens are known by blocks.
        tokenizer: folder of a checkpoint, whose chat form and tokenizer write chat logs.

    Raises:
        ConfigError: a value is wrong.
    """

    form: str = AUTO
    skip_bad: bool = False
    time_scale: float = 1.0
    first: int | None = None
    session_rate: float = 1 / 60
    seed: int = 0
    shared_prompt_tokens: int = 0
    tokenizer: str | None = None

    def __post_init__(self) -> None:
        if self.form not in (AUTO, *FORMS):
            raise ConfigError(one_of("form", self.form, (AUTO, *FORMS)))
        _positive("time_scale", self.time_scale)
        _positive("session_rate", self.session_rate)
        if self.first is not None:
            _whole("first", self.first, least=1, most=1 << 62)
        _whole("seed", self.seed, least=0, most=1 << 62)
        _whole("shared_prompt_tokens", self.shared_prompt_tokens, least=0, most=MAX_TOKENS)
        if not isinstance(self.skip_bad, bool):
            raise ConfigError(f"skip_bad must be true or false. Given: {self.skip_bad!r:.60}.")
        if self.tokenizer is not None and not isinstance(self.tokenizer, str):
            raise ConfigError(f"tokenizer must be the path of a folder. Given: {self.tokenizer!r:.60}.")


def _positive(name: str, value: object) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 1 / _MAX_FACTOR <= value <= _MAX_FACTOR):  # type: ignore[operator]
        raise ConfigError(
            f"{name} must be a number from {1 / _MAX_FACTOR:g} to {_MAX_FACTOR:g}. Given: {value!r:.60}."
        )


def _whole(name: str, value: object, *, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(f"{name} must be a whole number from {least} to {most}. Given: {value!r:.60}.")
