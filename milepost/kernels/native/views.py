"""A step's rows, states and KV as the compiled kernels see them; made once a step and kept beside it."""

from __future__ import annotations

import torch
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.native import native
from milepost.kernels.paging import PagedKv, PagedState, Ragged

__all__ = ["kv_view", "rows_view", "states_view"]

_FLOATS = {torch.float32: "f32", torch.bfloat16: "bf16"}


def rows_view(ragged: Ragged) -> native.Rows:
    """The rows; valid while `ragged` lives."""
    view = ragged.native
    if view is None:
        view = native.Rows(
            ragged.num_rows, ragged.num_tokens, _address(ragged.cu_seqlens), _address(ragged.starts)
        )
        object.__setattr__(ragged, "native", view)
    return view


def states_view(state: PagedState) -> native.States:
    """The states and their snapshots; valid while `state` lives."""
    view = state.native
    if view is None:
        view = native.States(
            _address(state.recurrent),
            _address(state.conv),
            _float(state.conv),
            state.recurrent.shape[1],
            state.recurrent.shape[2],
            state.conv.shape[1],
            state.tiles_per_page,
            state.table.stride(0),
            _table(state.table),
        )
        left = state.snapshots
        if left is not None:
            rows, ends, table = _address(left.rows), _address(left.ends), _table(left.table)
            view.leave(len(left.row_list), rows, ends, table, left.table.stride(0))
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
            _float(kv.cache),
            layers,
            block_size,
            row_dim,
            _table(kv.block_table),
            kv.block_table.stride(0),
            page_stride,
            layer_stride,
        )
        object.__setattr__(kv, "native", view)
    return view


def _table(tensor: Tensor) -> int:
    # Rows may lie further apart than they are long: their stride goes along.
    if tensor.stride(1) != 1 and tensor.shape[1] > 1:
        raise InvariantError(f"A table's rows must be contiguous. Given strides: {tensor.stride()}.")
    return tensor.data_ptr()


def _address(tensor: Tensor) -> int:
    if not tensor.is_contiguous():
        raise InvariantError(f"Kernels read contiguous tensors. Given strides: {tensor.stride()}.")
    return tensor.data_ptr()


def _float(tensor: Tensor) -> native.Float:
    name = _FLOATS.get(tensor.dtype)
    if name is None:
        raise InvariantError(f"Kernels read {', '.join(map(str, _FLOATS))}. Given: {tensor.dtype}.")
    view: native.Float = getattr(native.Float, name)
    return view
