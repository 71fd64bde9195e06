"""The scheduler's limits."""

from __future__ import annotations

import msgspec

from milepost.errors import ConfigError

__all__ = ["SchedulerConfig"]


class SchedulerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits that hold for every step and every request; checked when built.

    Attributes:
        max_model_len: most tokens of a request, prompt and output together.
        token_budget: most tokens that one step computes.
        max_num_seqs: most requests that run at the same time.
        headroom: tokens by which each running request may grow on the pages that admission leaves
            free. Without any, requests are admitted until the pool is full and then preempted as
            they grow; with much, pages lie idle.
        stop_token_ids: tokens that end every reply, unless its request says ``ignore_eos``.
        vocab_size: prompt tokens must be smaller; None when the executor takes any.

    Raises:
        ConfigError: a value is outside its range.
    """

    max_model_len: int
    token_budget: int = 2048
    max_num_seqs: int = 256
    headroom: int = 64
    stop_token_ids: tuple[int, ...] = ()
    vocab_size: int | None = None

    def __post_init__(self) -> None:
        # One prompt token and one output token are the least that is a request.
        _at_least("max_model_len", self.max_model_len, 2)
        _at_least("token_budget", self.token_budget, 1)
        _at_least("max_num_seqs", self.max_num_seqs, 1)
        _at_least("headroom", self.headroom, 0)
        if self.vocab_size is not None:
            _at_least("vocab_size", self.vocab_size, 1)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ConfigError(f"{name} must be at least {least}. Given: {value}.")
