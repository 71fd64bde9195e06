"""The largest batch that memory holds, by the state slots that each request is charged."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from milepost.errors import ConfigError
from milepost.memory.layout import Layout

__all__ = ["OTHERS_SLOTS", "SlotBatch", "batch_bytes", "constant_slots", "max_batch", "slot_batches"]

OTHERS_SLOTS = 5
"""State slots that aiconfigurator 0.12.0 charges each request of Kimi K3.

Its own words for `KDA_STATE_SLOTS_PER_REQUEST`: a flat proxy for one or two active slots and a global pool of
checkpoints.
"""

Slots = Callable[[int], int]
"""States that a batch of so many requests needs together."""


class SlotBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The largest batch at one context.

    Attributes:
        context_tokens: of each request.
        charged: what a request is charged, in words.
        max_batch: requests that fit.
        slots: states that they take together.
        state_bytes: of those.
        kv_bytes: of their KV.
    """

    context_tokens: int
    charged: str
    max_batch: int
    slots: int
    state_bytes: int
    kv_bytes: int


def constant_slots(each: int) -> Slots:
    """So many slots a request, whatever runs.

    Raises:
        ConfigError: below 1.
    """
    if each < 1:
        raise ConfigError(f"state slots a request must be at least 1. Given: {each}.")
    return lambda batch: each * batch


def batch_bytes(layout: Layout, batch: int, context_tokens: int, slots: Slots) -> int:
    """Memory that a batch takes, in whole pages, the dummy page not counted."""
    return _pages(layout, batch, context_tokens, slots) * layout.page_bytes


def max_batch(layout: Layout, memory_bytes: int, context_tokens: int, slots: Slots) -> int:
    """Most requests of `context_tokens` each that fit `memory_bytes`; 0 when not one does.

    Raises:
        ConfigError: a context below 1.
    """
    if context_tokens < 1:
        raise ConfigError(f"context_tokens must be at least 1. Given: {context_tokens}.")
    pages = memory_bytes // layout.page_bytes - 1  # the dummy page
    least = 0
    most = max(0, pages) // max(1, _pages(layout, 1, context_tokens, constant_slots(1)))
    while least < most:  # pages grow with the batch
        middle = (least + most + 1) // 2
        if _pages(layout, middle, context_tokens, slots) <= pages:
            least = middle
        else:
            most = middle - 1
    return least


def slot_batches(
    layout: Layout, memory_bytes: int, contexts: tuple[int, ...], charges: dict[str, Slots]
) -> tuple[SlotBatch, ...]:
    """The largest batch at each context under each charge.

    Args:
        layout: how states and KV lie in pages.
        memory_bytes: of a rank, for both.
        contexts: tokens of a request.
        charges: by what they are called.
    """
    found = []
    for context in contexts:
        for name, slots in charges.items():
            batch = max_batch(layout, memory_bytes, context, slots)
            states = slots(batch) if batch else 0
            found.append(
                SlotBatch(
                    context_tokens=context,
                    charged=name,
                    max_batch=batch,
                    slots=states,
                    state_bytes=states * layout.pages_per_state * layout.page_bytes,
                    kv_bytes=batch * layout.blocks_for(context) * layout.pages_per_block * layout.page_bytes,
                )
            )
    return tuple(found)


def _pages(layout: Layout, batch: int, context_tokens: int, slots: Slots) -> int:
    kv = batch * layout.blocks_for(context_tokens) * layout.pages_per_block
    return kv + slots(batch) * layout.pages_per_state
