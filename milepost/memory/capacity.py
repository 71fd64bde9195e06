"""How many pages a sequence takes, and how many tokens and sequences fit into a pool.

The numbers that are reported are those that the allocator acts on: `sequence_pages` is what
admission asks the pool for. A pool's pages include the dummy page, which no sequence can have.
"""

from __future__ import annotations

from milepost.memory.layout import Layout

__all__ = ["max_sequence_tokens", "max_sequences", "sequence_pages"]


def sequence_pages(layout: Layout, num_tokens: int) -> int:
    """Pages of one sequence that has computed `num_tokens` tokens: its state and its KV blocks."""
    return layout.pages_per_state + layout.blocks_for(num_tokens) * layout.pages_per_block


def max_sequence_tokens(layout: Layout, num_pages: int) -> int:
    """Most computed tokens that a sequence alone in `num_pages` pages can hold; 0 when no state fits."""
    blocks = (num_pages - 1 - layout.pages_per_state) // layout.pages_per_block
    return max(0, blocks) * layout.block_size


def max_sequences(layout: Layout, num_pages: int, num_tokens: int) -> int:
    """Sequences of `num_tokens` computed tokens each that fit into `num_pages` pages together."""
    return max(0, num_pages - 1) // sequence_pages(layout, num_tokens)
