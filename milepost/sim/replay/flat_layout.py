"""A layout of bare numbers, where no kernel will ever look for a tile."""

from __future__ import annotations

import msgspec

__all__ = ["FlatLayout"]


class FlatLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What the allocator must know, as given.

    Attributes:
        block_size: tokens of a KV block.
        page_bytes: bytes of a page.
        pages_per_state: pages of a state; 0 where it is ignored.
        pages_per_block: pages of a block.
    """

    block_size: int
    page_bytes: int
    pages_per_state: int
    pages_per_block: int = 1

    @property
    def state_bytes(self) -> int:
        """Bytes of a state."""
        return self.pages_per_state * self.page_bytes

    @property
    def state_padding_bytes(self) -> int:
        """None: a state fills its pages."""
        return 0

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)
