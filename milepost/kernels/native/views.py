"""A step's rows, states and KV as the compiled kernels see them; made once a step and kept beside it."""

from __future__ import annotations

from milepost.errors import InvariantError
from milepost.kernels.native import address, float_type, native, row_address
from milepost.kernels.paging import PagedKv, PagedState, Ragged

__all__ = ["kv_view", "rows_view", "states_view"]


def rows_view(ragged: Ragged) -> native.Rows:
    """The rows; valid while `ragged` lives."""
    view = ragged.native
    if view is None:
        view = native.Rows(
            ragged.num_rows,
            ragged.num_tokens,
            address("rows", "cu_seqlens", ragged.cu_seqlens),
            address("rows", "starts", ragged.starts),
        )
        object.__setattr__(ragged, "native", view)
    return view


def states_view(state: PagedState) -> native.States:
    """The states and their snapshots; valid while `state` lives."""
    view = state.native
    if view is None:
        view = native.States(
            address("states", "recurrent", state.recurrent),
            address("states", "conv", state.conv),
            float_type("states", "conv", state.conv),
            state.recurrent.shape[1],
            state.recurrent.shape[2],
            state.conv.shape[1],
            state.tiles_per_page,
            state.table.stride(0),
            row_address("states", "table", state.table),
        )
        left = state.snapshots
        if left is not None:
            view.leave(
                len(left.row_list),
                address("snapshots", "rows", left.rows),
                address("snapshots", "ends", left.ends),
                row_address("snapshots", "table", left.table),
                left.table.stride(0),
            )
        object.__setattr__(state, "native", view)
    return view


def kv_view(kv: PagedKv) -> native.Kv:
    """The KV; valid while `kv` lives."""
    view = kv.native
    if view is None:
        pages, layers, block_size, row_dim = kv.cache.shape
        page_stride, layer_stride, *inner = kv.cache.stride()
        if inner != [row_dim, 1] and pages:
            raise InvariantError(f"A block's rows must be contiguous. Given strides: {kv.cache.stride()}.")
        view = native.Kv(
            kv.cache.data_ptr(),
            float_type("kv", "cache", kv.cache),
            layers,
            block_size,
            row_dim,
            row_address("kv", "block_table", kv.block_table),
            kv.block_table.stride(0),
            page_stride,
            layer_stride,
        )
        object.__setattr__(kv, "native", view)
    return view
