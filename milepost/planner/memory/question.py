"""What a memory plan is asked, and what can't be asked."""

from __future__ import annotations

import msgspec

from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.memory.layout import DEFAULT_BLOCK_SIZE
from milepost.memory.named_layout import SIMULATED_LAYOUTS
from milepost.planner.deployment import Deployment
from milepost.planner.limits import check_within

__all__ = ["CONTEXTS", "MemoryQuestion", "check_question"]

CONTEXTS = tuple(1 << power for power in range(10, 21))
"""Tokens of a sequence in the table of batches: 1k to 1M, doubling."""
_MOST_TOKENS = 1 << 40
_MOST_SLOTS = 1 << 20
_MOST_CONTEXTS = 64
_MOST_BYTES = 1 << 60


class MemoryQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How states and KV lie in the memory of a device, and how many fit.

    Attributes:
        deployment: the model on its hardware.
        layout: "paged", "lcm" or "aligned".
        compare: lay out all three, side by side.
        block_size: tokens of a KV block, of ``paged`` and ``lcm``.
        kernel_alignment: tokens that the block of ``aligned`` grows by.
        match_unit: tokens between prefix keys.
        drafts: tokens that a speculative step drafts; the convolution's window keeps as many more inputs.
        slots: states that a request takes, on average; one runs, others are kept to be found again.
        contexts: tokens of a sequence in the table of batches.
        short_tokens: of the short request whose waste is told.
        memory_bytes: for states and KV on a device; 0 for what weights and workspace leave.
        reserve_bytes: of a device for a step's workspace; None for an estimate.
        step_tokens: tokens of the largest step, for that estimate.
    """

    deployment: Deployment = Deployment()
    layout: str = "paged"
    compare: bool = False
    block_size: int = DEFAULT_BLOCK_SIZE
    kernel_alignment: int = DEFAULT_BLOCK_SIZE
    match_unit: int = 16
    drafts: int = 0
    slots: float = 1.0
    contexts: tuple[int, ...] = CONTEXTS
    short_tokens: int = 1_000
    memory_bytes: int = 0
    reserve_bytes: int | None = None
    step_tokens: int = 8_192

    @property
    def layouts(self) -> tuple[str, ...]:
        """Names of the layouts that are asked for."""
        return SIMULATED_LAYOUTS if self.compare else (self.layout,)


def check_question(question: MemoryQuestion) -> None:
    """Refuse what no model could have.

    Raises:
        ConfigError: an unknown layout, or a number that is out of its range.
    """
    if question.layout not in SIMULATED_LAYOUTS:
        raise ConfigError(one_of("layout", question.layout, SIMULATED_LAYOUTS))
    for name in ("block_size", "kernel_alignment", "match_unit", "short_tokens", "step_tokens"):
        check_within(name, getattr(question, name), 1, _MOST_TOKENS)
    check_within("drafts", question.drafts, 0, 1_024)
    check_within("memory_bytes", question.memory_bytes, 0, _MOST_BYTES)
    if question.reserve_bytes is not None:
        check_within("reserve_bytes", question.reserve_bytes, 0, _MOST_BYTES)
    if not 1 <= len(question.contexts) <= _MOST_CONTEXTS:
        raise ConfigError(f"contexts must be 1 to {_MOST_CONTEXTS}. Given: {len(question.contexts)}.")
    if len(set(question.contexts)) < len(question.contexts):
        given = ", ".join(map(str, question.contexts))
        raise ConfigError(f"contexts must differ from each other. Given: {given}.")
    for context in question.contexts:
        check_within("contexts", context, 1, _MOST_TOKENS)
    if not 1 <= question.slots <= _MOST_SLOTS:  # also no number at all
        raise ConfigError(
            f"slots must be 1, the state of a running request, to {_MOST_SLOTS:,}. Given: {question.slots}."
        )
