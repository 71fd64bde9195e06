"""Cheap checks of what kernels are given: a wrong shape here is a bug of the caller, which is our code."""

from __future__ import annotations

from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.paging import PagedKv, PagedState, Ragged, StateSnapshots

__all__ = ["check_kv", "check_ragged", "check_shape", "check_state"]


def check_shape(op: str, name: str, tensor: Tensor, *expected: int | None) -> None:
    """Compare a shape with what is expected; None stands for any size.

    Raises:
        InvariantError: another number of dims or another size, with both shapes.
    """
    shape = tensor.shape
    if len(shape) != len(expected) or any(
        want is not None and want != have for want, have in zip(expected, shape, strict=True)
    ):
        wanted = ", ".join("*" if size is None else str(size) for size in expected)
        raise InvariantError(f"{op}: {name} must have shape [{wanted}]. Given: {list(shape)}.")


def check_ragged(op: str, num_tokens: int, ragged: Ragged) -> None:
    """Compare the tokens given with the tokens that the rows cover.

    Raises:
        InvariantError: the numbers differ.
    """
    if ragged.num_tokens != num_tokens:
        raise InvariantError(f"{op}: rows cover {ragged.num_tokens} tokens. Given: {num_tokens} tokens.")


def check_state(op: str, state: PagedState, ragged: Ragged, last_tile: int) -> None:
    """Check that a state has a table row per row and holds tiles up to `last_tile`, exclusive.

    Raises:
        InvariantError: rows are missing, the op would run past the state's pages, or a snapshot is
            of other size or not after a token of its row.
    """
    if state.table.shape[0] != ragged.num_rows:
        raise InvariantError(
            f"{op}: the state table must have {ragged.num_rows} rows. Given: {state.table.shape[0]}."
        )
    tiles = state.table.shape[1] * state.tiles_per_page
    if last_tile > tiles:
        raise InvariantError(f"{op}: needs tiles up to {last_tile} of a state that has {tiles}.")
    if state.snapshots is not None:
        _check_snapshots(op, state.snapshots, state.table.shape[1], ragged)


def _check_snapshots(op: str, snapshots: StateSnapshots, num_pages: int, ragged: Ragged) -> None:
    check_shape(op, "snapshots.table", snapshots.table, None, num_pages)
    offsets, before = ragged.offsets, 0
    for row, end in zip(snapshots.row_list, snapshots.end_list, strict=True):
        if not 0 <= row < ragged.num_rows or not max(offsets[row], before) < end <= offsets[row + 1]:
            raise InvariantError(
                f"{op}: a snapshot of row {row} must come after one of the row's tokens, later than the "
                f"snapshot before it. Given: after {end} of the step's tokens, rows at {offsets}."
            )
        before = end


def check_kv(op: str, kv: PagedKv, layer: int, ragged: Ragged) -> None:
    """Check that a KV view has a table row per row and knows the layer.

    Raises:
        InvariantError: rows are missing, or the layer is out of range.
    """
    if kv.block_table.shape[0] != ragged.num_rows:
        raise InvariantError(
            f"{op}: the block table must have {ragged.num_rows} rows. Given: {kv.block_table.shape[0]}."
        )
    if not 0 <= layer < kv.cache.shape[1]:
        raise InvariantError(f"{op}: layer must be below {kv.cache.shape[1]} MLA layers. Given: {layer}.")
