"""Bytes to pages: how KV blocks and states lie in the arena.

A page is a fixed number of bytes; one KV block of all MLA layers is one page, and a state is a list of
tiles laid over a list of pages, as a file is laid over disk blocks. All sizes are bytes of one rank.

    page            [mla_layers, block_size, row_dim] of the KV dtype       (as a KV block)
                    tiles_per_page x [tile_bytes]                            (as part of a state)
    recurrent tile  [tile_rows, head_dim] fp32: rows of one head's [v, k] matrix; a KDA layer's matrices
                    are consecutive tiles, head after head
    conv tile       a KDA layer's flat [window, 3*channels] window in the model's dtype, cut into
                    consecutive tiles wherever they end

Tile t of a state lies at
``state_table[t // tiles_per_page] * page_bytes + (t % tiles_per_page) * tile_bytes``. Layouts differ in
the length of a block and in where a layer's tiles start: `PagedLayout` (design section 4's ``paged``)
keeps the block that was asked for and lays all matrices, then all windows, without gaps;
`milepost.memory.aligned` grows the block until it holds a layer's state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import msgspec

from milepost.errors import ConfigError
from milepost.model_spec import ModelSpec
from milepost.shapes.of_spec import shape_of
from milepost.shapes.shape import ModelShape

__all__ = [
    "DEFAULT_BLOCK_SIZE",
    "DUMMY_PAGE",
    "RECURRENT_ITEMSIZE",
    "Layout",
    "PagedLayout",
    "TiledLayout",
    "dividing_tile_rows",
    "paged_layout",
    "rank_sizes",
]

DUMMY_PAGE = 0  # padding points here; it is counted in the budget and no owner ever gets it
DEFAULT_BLOCK_SIZE = 64
MAX_TILE_ROWS = 16
RECURRENT_ITEMSIZE = 4  # fp32, whatever the model's dtype; only a float64 engine keeps float64


class Layout(Protocol):
    """What the allocator and the scheduler need to know of a layout."""

    @property
    def page_bytes(self) -> int:
        """Bytes of a page, the allocator's only unit."""
        ...

    @property
    def block_size(self) -> int:
        """Tokens of a KV block."""
        ...

    @property
    def pages_per_block(self) -> int:
        """Pages that one KV block takes."""
        ...

    @property
    def pages_per_state(self) -> int:
        """Pages that one state takes."""
        ...

    @property
    def state_bytes(self) -> int:
        """Bytes of a state's tiles, padding inside the last page not counted."""
        ...

    @property
    def state_padding_bytes(self) -> int:
        """Bytes of a state's pages that hold nothing."""
        ...

    def blocks_for(self, num_tokens: int) -> int:
        """KV blocks that hold `num_tokens` tokens."""
        ...


class TiledLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What every layout that the engine runs on has in common; see the module's picture.

    A layout of its own says which pages a state takes and where each layer's tiles start
    (`pages_per_state`, `first_recurrent_tile`, `first_conv_tile`); everything else follows.

    Attributes:
        block_size: tokens of a KV block.
        num_attention_layers: attention layers (MLA); a page holds one block of each.
        num_recurrent_layers: recurrent layers (KDA) of a state.
        row_dim: elements of one token's row in one attention layer.
        kv_itemsize: bytes of a cached KV element.
        num_heads: heads of a recurrent layer on the rank.
        head_rows: rows of a head's matrix, the width of its value.
        head_dim: elements of a row, the width of a head's key.
        tile_rows: rows of a head's matrix in a tile.
        conv_channels: channels of a convolution window, q, k and v together.
        conv_window: past inputs that a window keeps.
        conv_itemsize: bytes of a window's element.
        recurrent_itemsize: bytes of a matrix's element.
    """

    block_size: int
    num_attention_layers: int
    num_recurrent_layers: int
    row_dim: int
    kv_itemsize: int
    num_heads: int
    head_rows: int
    head_dim: int
    tile_rows: int
    conv_channels: int
    conv_window: int
    conv_itemsize: int
    recurrent_itemsize: int = RECURRENT_ITEMSIZE

    @property
    def pages_per_block(self) -> int:
        """Always 1: the page is the block."""
        return 1

    @property
    def page_bytes(self) -> int:
        """Bytes of `block_size` tokens of all MLA layers."""
        return self.block_size * self.num_attention_layers * self.row_dim * self.kv_itemsize

    @property
    def tile_bytes(self) -> int:
        """Bytes of `tile_rows` rows of one head's recurrent matrix."""
        return self.tile_rows * self.head_dim * self.recurrent_itemsize

    @property
    def tiles_per_page(self) -> int:
        """Tiles that a page holds; it divides without rest."""
        return self.page_bytes // self.tile_bytes

    @property
    def recurrent_tiles_per_layer(self) -> int:
        """Tiles of one KDA layer's recurrent matrices."""
        return self.num_heads * (self.head_rows // self.tile_rows)

    @property
    def conv_bytes_per_layer(self) -> int:
        """Bytes of one KDA layer's convolution window over q|k|v."""
        return self.conv_window * self.conv_channels * self.conv_itemsize

    @property
    def conv_tiles_per_layer(self) -> int:
        """Tiles of one KDA layer's convolution window."""
        return math.ceil(self.conv_bytes_per_layer / self.tile_bytes)

    @property
    def state_tiles(self) -> int:
        """Tiles of a whole state."""
        return self.num_recurrent_layers * (self.recurrent_tiles_per_layer + self.conv_tiles_per_layer)

    @property
    def state_bytes(self) -> int:
        """Bytes of a whole state as its layers count them, padding not counted."""
        recurrent = self.recurrent_tiles_per_layer * self.tile_bytes
        return self.num_recurrent_layers * (recurrent + self.conv_bytes_per_layer)

    @property
    def pages_per_state(self) -> int:
        """Pages that a state takes."""
        raise NotImplementedError

    @property
    def state_padding_bytes(self) -> int:
        """Bytes of a state's pages that hold nothing."""
        return self.pages_per_state * self.page_bytes - self.state_bytes

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's rows in all MLA layers."""
        return self.num_attention_layers * self.row_dim * self.kv_itemsize

    def blocks_for(self, num_tokens: int) -> int:
        """KV blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def first_recurrent_tile(self, kda_index: int) -> int:
        """Tile of a state at which the `kda_index`-th KDA layer's recurrent matrices start."""
        raise NotImplementedError

    def first_conv_tile(self, kda_index: int) -> int:
        """Tile of a state at which the `kda_index`-th KDA layer's convolution window starts."""
        raise NotImplementedError

    @property
    def first_recurrent_tiles(self) -> tuple[int, ...]:
        """`first_recurrent_tile` of each KDA layer."""
        return tuple(self.first_recurrent_tile(index) for index in range(self.num_recurrent_layers))

    @property
    def first_conv_tiles(self) -> tuple[int, ...]:
        """`first_conv_tile` of each KDA layer."""
        return tuple(self.first_conv_tile(index) for index in range(self.num_recurrent_layers))


class PagedLayout(TiledLayout, frozen=True, kw_only=True):
    """The default: the block stays as asked, all matrices then all windows lie without gaps."""

    @property
    def pages_per_state(self) -> int:
        """Pages that a state takes."""
        return math.ceil(self.state_tiles / self.tiles_per_page)

    def first_recurrent_tile(self, kda_index: int) -> int:
        """Tile at which the `kda_index`-th KDA layer's matrices start: layer-major, from tile 0."""
        return kda_index * self.recurrent_tiles_per_layer

    def first_conv_tile(self, kda_index: int) -> int:
        """Tile at which the `kda_index`-th KDA layer's window starts: after all layers' matrices."""
        recurrent = self.num_recurrent_layers * self.recurrent_tiles_per_layer
        return recurrent + kda_index * self.conv_tiles_per_layer


def paged_layout(
    model: ModelSpec | ModelShape,
    *,
    block_size: int = DEFAULT_BLOCK_SIZE,
    kv_itemsize: int = 2,
    conv_itemsize: int = 2,
    recurrent_itemsize: int = RECURRENT_ITEMSIZE,
    tensor_parallel: int = 1,
) -> PagedLayout:
    """Lay a model out in pages.

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
    token_bytes = sizes["num_attention_layers"] * sizes["row_dim"] * kv_itemsize
    row_bytes = sizes["head_dim"] * recurrent_itemsize
    tile_rows = next(dividing_tile_rows(sizes["head_rows"], row_bytes, block_size * token_bytes), None)
    if tile_rows is None:
        step = row_bytes // math.gcd(row_bytes, token_bytes)
        raise ConfigError(
            f"block_size must be a multiple of {step} for this model, so that rows of {row_bytes} bytes of a "
            f"state fill its pages. Given: {block_size}, pages of {block_size * token_bytes} bytes."
        )
    return PagedLayout(block_size=block_size, tile_rows=tile_rows, **sizes)


def rank_sizes(
    model: ModelSpec | ModelShape,
    *,
    kv_itemsize: int,
    conv_itemsize: int,
    recurrent_itemsize: int,
    tensor_parallel: int,
) -> dict[str, int]:
    """The fields of a `TiledLayout` that the model and the dtypes decide: all but block_size and tile_rows.

    Raises:
        ConfigError: ranks that don't divide the heads, or a model without one of the layer kinds.
    """
    shape = shape_of(model)
    recurrent, attention = shape.recurrent, shape.attention
    if tensor_parallel < 1:
        raise ConfigError(f"tensor_parallel must be at least 1. Given: {tensor_parallel}.")
    if recurrent is None or attention is None or not shape.recurrent_layers or not shape.attention_layers:
        raise ConfigError(
            "A layout needs at least one MLA and one KDA layer, or other layers that keep rows and a state. "
            f"Given: {shape.attention_layers} that keep rows, {shape.recurrent_layers} that keep a state."
        )
    if recurrent.heads % tensor_parallel:
        raise ConfigError(
            f"tensor_parallel must divide the {recurrent.heads} {recurrent.kind.value} heads. "
            f"Given: {tensor_parallel}."
        )
    return {
        "num_attention_layers": shape.attention_layers,
        "num_recurrent_layers": shape.recurrent_layers,
        "row_dim": attention.rank_row_dim(tensor_parallel),
        "kv_itemsize": kv_itemsize,
        "num_heads": recurrent.heads // tensor_parallel,
        "head_rows": recurrent.rows,
        "head_dim": recurrent.row_dim,
        "conv_channels": recurrent.conv_channels(tensor_parallel),
        "conv_window": recurrent.conv_window,
        "conv_itemsize": conv_itemsize,
        "recurrent_itemsize": recurrent_itemsize,
    }


def dividing_tile_rows(head_rows: int, row_bytes: int, run_bytes: int) -> Iterator[int]:
    """Rows of a tile, at most 16, most first: they divide a head's rows and their bytes `run_bytes`."""
    for rows in range(min(MAX_TILE_ROWS, head_rows), 0, -1):
        if head_rows % rows == 0 and run_bytes % (rows * row_bytes) == 0:
            yield rows
