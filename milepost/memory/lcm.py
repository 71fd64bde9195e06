"""The ``lcm`` layout: large pages that hold states or KV blocks, carved into small ones (Jenga, SOSP 2025).

A large page's size is a common multiple of the kinds' sizes, so that it can be carved into small pages of
either kind. Here the kinds are one MLA layer's block and one KDA layer's state, as in Jenga, whose small
pages belong to a layer; all sizes are bytes of one rank:

    Kimi K3, one rank, blocks of 64 tokens
    layer's block    73,728 B                     layer's state    6,512,640 B
    large page       19,537,920 B = 265 blocks of a layer = 3 states of a layer
    as KV            11 blocks of all 24 MLA layers, 704 tokens; one layer's block is left over
    as states        3 of 69 KDA layers: a state takes 23 large pages and fills them

The least common multiple can be far larger than a state: 72 states of a layer for Kimi-Linear on 8
ranks, which has 20. Then the layer's state is padded to whole blocks of a layer, and the large page is a
multiple of that. Of the multiples that are no larger than a state the one that wastes least is taken,
what a state leaves empty and what is left over of blocks counted together.

A state takes whole large pages, and the pages that the allocator counts, here too, are KV blocks: a large
page is `pages_per_large` of them. `LcmPool` gives them out. The simulator and the planner know this
layout; kernels do not, so the engine can't run on it.
"""

from __future__ import annotations

import math

import msgspec

from milepost.errors import ConfigError
from milepost.memory.layout import DEFAULT_BLOCK_SIZE, RECURRENT_ITEMSIZE, rank_sizes
from milepost.model_spec import ModelSpec
from milepost.shapes.shape import ModelShape

__all__ = ["LcmLayout", "lcm_layout"]


class LcmLayout(msgspec.Struct, frozen=True, kw_only=True):
    """Large pages in numbers; see the module's picture. Built by `lcm_layout`.

    Attributes:
        block_size: tokens of a KV block.
        page_bytes: of a KV block of all MLA layers.
        large_bytes: of a large page.
        slot_bytes: that a KDA layer's state takes there: its own, or padded to whole blocks of a layer.
        large_per_state: large pages that a state takes.
        state_bytes: of a state as its layers count them.
    """

    block_size: int
    page_bytes: int
    large_bytes: int
    slot_bytes: int
    large_per_state: int
    state_bytes: int

    @property
    def pages_per_block(self) -> int:
        """Always 1: the small page is the block."""
        return 1

    @property
    def pages_per_large(self) -> int:
        """Whole KV blocks that a large page holds."""
        return self.large_bytes // self.page_bytes

    @property
    def pages_per_state(self) -> int:
        """A state in KV blocks: those of its large pages."""
        return self.large_per_state * self.pages_per_large

    @property
    def state_padding_bytes(self) -> int:
        """Bytes of a state's large pages that hold nothing."""
        return self.large_per_state * self.large_bytes - self.state_bytes

    @property
    def left_over_bytes(self) -> int:
        """Bytes of a large page that no KV block takes."""
        return self.large_bytes - self.pages_per_large * self.page_bytes

    @property
    def waste(self) -> float:
        """What a state leaves empty and what blocks leave over, shares of their bytes added up."""
        return self.state_padding_bytes / self.state_bytes + self.left_over_bytes / self.large_bytes

    def blocks_for(self, num_tokens: int) -> int:
        """KV blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)


def lcm_layout(
    model: ModelSpec | ModelShape,
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
    kv_itemsize: int = 2,
    conv_itemsize: int = 2,
    recurrent_itemsize: int = RECURRENT_ITEMSIZE,
    tensor_parallel: int = 1,
) -> LcmLayout:
    """Lay a model out in large pages of a common multiple.

    Args:
        model: what the engine runs, or the numbers of any other.
        block_size: tokens of a KV block.
        kv_itemsize: bytes of a cached KV element (bf16: 2).
        conv_itemsize: bytes of a convolution window's element (the model's dtype).
        recurrent_itemsize: bytes of an element of the recurrent matrices.
        tensor_parallel: ranks that share the heads; the MLA latent is replicated on each.

    Raises:
        ConfigError: sizes that can't be laid out, with the limit and what to change.
    """
    if block_size < 1:
        raise ConfigError(f"block_size must be at least 1. Given: {block_size}.")
    sizes = rank_sizes(
        model,
        kv_itemsize=kv_itemsize,
        conv_itemsize=conv_itemsize,
        recurrent_itemsize=recurrent_itemsize,
        tensor_parallel=tensor_parallel,
    )
    kda_layers = sizes["num_recurrent_layers"]
    layer_block = block_size * sizes["row_dim"] * kv_itemsize
    matrix_bytes = sizes["num_heads"] * sizes["head_rows"] * sizes["head_dim"] * recurrent_itemsize
    layer_state = matrix_bytes + sizes["conv_window"] * sizes["conv_channels"] * conv_itemsize
    page_bytes = sizes["num_attention_layers"] * layer_block
    state_bytes = kda_layers * layer_state
    layouts = [
        LcmLayout(
            block_size=block_size,
            page_bytes=page_bytes,
            large_bytes=large_bytes,
            slot_bytes=slot_bytes,
            large_per_state=-(-kda_layers // (large_bytes // slot_bytes)),
            state_bytes=state_bytes,
        )
        for slot_bytes, large_bytes in _multiples(layer_block, layer_state, page_bytes, state_bytes)
    ]
    return min(layouts, key=_by_waste)


def _multiples(
    layer_block: int, layer_state: int, page_bytes: int, state_bytes: int
) -> list[tuple[int, int]]:
    """(bytes of a layer's state, padded or not, bytes of a large page) to choose from; at least one."""
    padded = -(-layer_state // layer_block) * layer_block
    found = []
    for slot_bytes in (layer_state, padded):
        multiple = math.lcm(slot_bytes, layer_block)
        # A large page holds a block of all layers at least; it may hold a whole number of them.
        enough = -(-page_bytes // multiple) * multiple
        found += [(slot_bytes, enough), (slot_bytes, math.lcm(multiple, page_bytes))]
    within = [choice for choice in found if choice[1] <= state_bytes]
    return within or [min(found, key=_large_bytes)]


def _large_bytes(choice: tuple[int, int]) -> int:
    return choice[1]


def _by_waste(layout: LcmLayout) -> tuple[float, int]:
    return layout.waste, layout.large_bytes
