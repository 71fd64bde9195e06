"""The ``aligned`` layout: the block grows until one layer's block is as large as one layer's state.

This is how engines with one page size and contiguous states lay them out, vLLM's four steps; it is here
to be compared with `PagedLayout`. All sizes are bytes of one rank.

    1. raw sizes    one token's row in one MLA layer; one KDA layer's matrices and window
    2. grow         the block, in steps of the kernel's alignment, until a layer's block is at least
                    a layer's state
    3. pad          the layer's state to the layer's block: both are now one *slot*
    4. one page     a page is as many slots as there are MLA layers, one table serves both

    page                    slot 0 | slot 1 | ... | slot mla_layers - 1
    as a KV block           MLA layer j's [block_size, row_dim] is slot j
    as part of a state      KDA layer i is slot i % mla_layers of the state's page i // mla_layers:
                            its matrices' tiles, its window's tiles, padding

Slots are cut into whole tiles, so a state is tiles over pages here too, and every kernel runs as it is.
"""

from __future__ import annotations

import math

import msgspec

from milepost.errors import ConfigError
from milepost.memory.layout import (
    DEFAULT_BLOCK_SIZE,
    RECURRENT_ITEMSIZE,
    TiledLayout,
    dividing_tile_rows,
    rank_sizes,
)
from milepost.model_spec import ModelSpec
from milepost.shapes.shape import ModelShape

__all__ = ["AlignedLayout", "AlignmentSteps", "aligned_layout", "grow_block"]


class AlignmentSteps(msgspec.Struct, frozen=True, kw_only=True):
    """The four steps in numbers, to be printed or compared.

    Attributes:
        token_bytes: one token's row in one MLA layer (step 1).
        layer_state_bytes: one KDA layer's matrices and window (step 1).
        state_rows: token rows that hold a layer's state, rounded up to whole ones (step 1).
        kernel_alignment: tokens that the block grows by (step 2).
        grown_block: the shortest block that holds a layer's state (step 2).
        block_size: the block in use; longer than `grown_block` only where whole tiles need it (step 2).
        layer_padding_bytes: bytes that a layer's state is padded by (step 3).
        page_bytes: one block of all MLA layers (step 4).
        pages_per_state: pages of all KDA layers (step 4).
        empty_slots: slots of a state's last page that no KDA layer takes (step 4).
        state_padding_bytes: bytes of a state's pages that hold nothing, empty slots counted (step 4).
    """

    token_bytes: int
    layer_state_bytes: int
    state_rows: int
    kernel_alignment: int
    grown_block: int
    block_size: int
    layer_padding_bytes: int
    page_bytes: int
    pages_per_state: int
    empty_slots: int
    state_padding_bytes: int

    @property
    def layer_padding_share(self) -> float:
        """What a layer's state is padded by, as a share of its own bytes."""
        return self.layer_padding_bytes / self.layer_state_bytes

    def lines(self) -> tuple[str, str, str, str]:
        """The four steps, one sentence each."""
        grown = f"{self.grown_block:,} tokens hold a layer's state in steps of {self.kernel_alignment:,}"
        if self.block_size > self.grown_block:
            grown += f"; {self.block_size:,} do in whole tiles"
        row, state = f"{self.token_bytes:,} B in an MLA layer", f"{self.layer_state_bytes:,} B in a KDA layer"
        padding = f"{self.layer_padding_bytes:,} B ({self.layer_padding_share:.2%})"
        pages = f"{self.pages_per_state:,} pages with {self.empty_slots:,} empty slots"
        return (
            f"a token's row takes {row}, a state {state}: {self.state_rows:,} rows",
            grown,
            f"a layer's state is padded by {padding}",
            f"a page takes {self.page_bytes:,} B, a state {pages}",
        )

    def __str__(self) -> str:
        return "\n".join(f"({number}) {line}" for number, line in enumerate(self.lines(), 1))


class AlignedLayout(TiledLayout, frozen=True, kw_only=True):
    """Blocks as long as a layer's state is large; see the module's picture. Built by `aligned_layout`.

    Attributes:
        kernel_alignment: tokens that the block grew by.
    """

    kernel_alignment: int

    @property
    def slot_bytes(self) -> int:
        """Bytes of one layer's block, which are those of one layer's padded state."""
        return self.page_bytes // self.num_attention_layers

    @property
    def tiles_per_slot(self) -> int:
        """Tiles of a slot; it divides without rest."""
        return self.slot_bytes // self.tile_bytes

    @property
    def pages_per_state(self) -> int:
        """Pages that a state takes: a slot for each KDA layer."""
        return math.ceil(self.num_recurrent_layers / self.num_attention_layers)

    def first_recurrent_tile(self, kda_index: int) -> int:
        """Tile at which the `kda_index`-th KDA layer's matrices start: at its slot's start."""
        # A page is a whole number of slots, so slots count on from page to page.
        return kda_index * self.tiles_per_slot

    def first_conv_tile(self, kda_index: int) -> int:
        """Tile at which the `kda_index`-th KDA layer's window starts: after its matrices, in its slot."""
        return self.first_recurrent_tile(kda_index) + self.recurrent_tiles_per_layer

    @property
    def steps(self) -> AlignmentSteps:
        """How the block came to be as long as it is."""
        token_bytes = self.row_dim * self.kv_itemsize
        state_bytes = self.state_bytes // self.num_recurrent_layers
        return AlignmentSteps(
            token_bytes=token_bytes,
            layer_state_bytes=state_bytes,
            state_rows=-(-state_bytes // token_bytes),
            kernel_alignment=self.kernel_alignment,
            grown_block=grow_block(token_bytes, state_bytes, self.kernel_alignment),
            block_size=self.block_size,
            layer_padding_bytes=self.slot_bytes - state_bytes,
            page_bytes=self.page_bytes,
            pages_per_state=self.pages_per_state,
            empty_slots=self.pages_per_state * self.num_attention_layers - self.num_recurrent_layers,
            state_padding_bytes=self.state_padding_bytes,
        )


def grow_block(token_bytes: int, state_bytes: int, alignment: int) -> int:
    """Step 2: the shortest block of a multiple of `alignment` tokens that holds `state_bytes`.

    Args:
        token_bytes: one token's row in one attention layer.
        state_bytes: one recurrent layer's state.
        alignment: tokens that the attention kernel takes at a time.
    """
    return -(-state_bytes // (token_bytes * alignment)) * alignment


def aligned_layout(
    model: ModelSpec | ModelShape,
    *,
    kernel_alignment: int = DEFAULT_BLOCK_SIZE,
    kv_itemsize: int = 2,
    conv_itemsize: int = 2,
    recurrent_itemsize: int = RECURRENT_ITEMSIZE,
    tensor_parallel: int = 1,
) -> AlignedLayout:
    """Lay a model out in pages whose block is as large as a layer's state.

    Args:
        model: what the engine runs, or the numbers of any other.
        kernel_alignment: tokens that the block grows by.
        kv_itemsize: bytes of a cached KV element (bf16: 2, fp8: 1).
        conv_itemsize: bytes of a convolution window's element (the model's dtype).
        recurrent_itemsize: bytes of an element of the recurrent matrices.
        tensor_parallel: ranks that share the heads; the MLA latent is replicated on each.

    Raises:
        ConfigError: sizes that can't be laid out, with the limit.
    """
    if kernel_alignment < 1:
        raise ConfigError(f"The block's kernel_alignment must be at least 1. Given: {kernel_alignment}.")
    sizes = rank_sizes(
        model,
        kv_itemsize=kv_itemsize,
        conv_itemsize=conv_itemsize,
        recurrent_itemsize=recurrent_itemsize,
        tensor_parallel=tensor_parallel,
    )
    token_bytes = sizes["row_dim"] * kv_itemsize
    row_bytes = sizes["head_dim"] * recurrent_itemsize
    conv_bytes = sizes["conv_window"] * sizes["conv_channels"] * conv_itemsize
    matrix_bytes = sizes["num_heads"] * sizes["head_rows"] * row_bytes
    block_size = grow_block(token_bytes, matrix_bytes + conv_bytes, kernel_alignment)
    # Tiles must not straddle slots, and a window's last tile may hold less than a whole one. A block of
    # row_bytes tokens has slots of whole rows and every further step adds room, so this ends.
    while True:
        slot_bytes = block_size * token_bytes
        for rows in dividing_tile_rows(sizes["head_rows"], row_bytes, slot_bytes):
            tile_bytes = rows * row_bytes
            if matrix_bytes + -(-conv_bytes // tile_bytes) * tile_bytes <= slot_bytes:
                return AlignedLayout(
                    block_size=block_size, tile_rows=rows, kernel_alignment=kernel_alignment, **sizes
                )
        block_size += kernel_alignment
