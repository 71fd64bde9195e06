"""How much fits: bytes to pages, and pages to tokens and sequences.

The numbers that are reported are those that the allocator acts on: `sequence_pages` is what
admission asks the pool for.
"""

from __future__ import annotations

from milepost.errors import ConfigError
from milepost.memory.layout import Layout
from milepost.memory.pool import PagePool

__all__ = ["max_sequence_tokens", "max_sequences", "min_pool_pages", "pages_for_budget", "sequence_pages"]


def sequence_pages(layout: Layout, num_tokens: int) -> int:
    """Pages of one sequence that has computed `num_tokens` tokens: its state and its KV blocks."""
    return layout.pages_per_state + layout.blocks_for(num_tokens) * layout.pages_per_block


def min_pool_pages(layout: Layout) -> int:
    """Pages of the smallest pool that can run anything: dummy page, one state, one block."""
    return 1 + sequence_pages(layout, 1)


def pages_for_budget(layout: Layout, num_bytes: int) -> int:
    """Pages that `num_bytes` bytes buy, the dummy page included.

    Raises:
        ConfigError: too few for one sequence of one block.
    """
    num_pages = num_bytes // layout.page_bytes
    least = min_pool_pages(layout)
    if num_pages < least:
        raise ConfigError(
            f"The memory budget must hold at least {least} pages of {layout.page_bytes} bytes "
            f"({least * layout.page_bytes} bytes): one state, one KV block and the dummy page. "
            f"Given: {num_bytes} bytes. Raise the budget or lower block_size."
        )
    return num_pages


def max_sequence_tokens(layout: Layout, pool: PagePool) -> int:
    """Most computed tokens that a sequence alone in `pool` can hold; 0 when not even a state fits."""
    blocks = (pool.num_usable - layout.pages_per_state) // layout.pages_per_block
    return max(0, blocks) * layout.block_size


def max_sequences(layout: Layout, pool: PagePool, num_tokens: int) -> int:
    """Sequences of `num_tokens` computed tokens each that fit into `pool` together."""
    return pool.num_usable // sequence_pages(layout, num_tokens)
