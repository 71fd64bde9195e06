"""The snapshots that a step's rows are asked to leave: orders to tensors, and what came of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from milepost.errors import InvariantError
from milepost.kernels.paging import StateSnapshots
from milepost.memory.layout import DUMMY_PAGE
from milepost.runtime.arena import Arena
from milepost.runtime.tables import check_pages
from milepost.types import Row

__all__ = ["snapshots_of", "written_snapshots"]


def snapshots_of(rows: Sequence[Row], arena: Arena, written: Collection[int]) -> StateSnapshots | None:
    """The orders of all rows side by side; None when there are none.

    Args:
        rows: the step's rows, in the order of its tensors.
        arena: where their pages lie.
        written: pages that the rows themselves write, states and blocks.

    Raises:
        InvariantError: a snapshot that does not fit its row or the arena, or shares a page.
    """
    owners: list[Row] = []
    row_numbers: list[int] = []
    ends: list[int] = []
    tables: list[tuple[int, ...]] = []
    offset = 0  # of the row's first token in the step
    for number, row in enumerate(rows):
        before = row.start
        for order in row.snapshots:
            _check_order(row, order.position, before, order.pages, arena)
            before = order.position
            owners.append(row)
            row_numbers.append(number)
            ends.append(offset + order.position - row.start)
            tables.append(order.pages)
        offset += len(row.token_ids)
    if not owners:
        return None
    table = np.array(tables, dtype=np.int64)
    check_pages(owners, table, arena)
    _check_shared(rows, table, arena, written)
    return StateSnapshots(torch.tensor(row_numbers), torch.tensor(ends), torch.from_numpy(table))


def written_snapshots(rows: Sequence[Row], snapshots: StateSnapshots | None, arena: Arena) -> list[list[int]]:
    """Positions of each row's snapshots that hold finite numbers only, after the step has run.

    It reads the snapshots and nothing else.

    Args:
        rows: the step's rows.
        snapshots: what `snapshots_of` made of them.
        arena: where they were written.
    """
    positions: list[list[int]] = [[] for _ in rows]
    if snapshots is None:
        return positions
    finite = arena.finite_states(arena.states(snapshots.table)).tolist()
    orders = [(number, order) for number, row in enumerate(rows) for order in row.snapshots]
    for (number, order), is_finite in zip(orders, finite, strict=True):
        if is_finite:
            positions[number].append(order.position)
    return positions


def _check_order(row: Row, position: int, before: int, pages: Sequence[int], arena: Arena) -> None:
    end = row.start + len(row.token_ids)
    if not before < position <= end:
        raise InvariantError(
            f"Request {row.request_id!r}: snapshots must come one after the other behind token {row.start} "
            f"and up to {end}. Given: {[order.position for order in row.snapshots]}."
        )
    if len(pages) != arena.layout.pages_per_state:
        raise InvariantError(
            f"Request {row.request_id!r}: a state takes {arena.layout.pages_per_state} pages, "
            f"its snapshot after {position} tokens has {len(pages)}."
        )
    if DUMMY_PAGE in pages:
        raise InvariantError(
            f"Request {row.request_id!r}: its snapshot after {position} tokens is to lie on the dummy page."
        )


def _check_shared(
    rows: Sequence[Row], table: NDArray[np.int64], arena: Arena, written: Collection[int]
) -> None:
    """A snapshot's page is written by nothing else of the step: no row and no other snapshot."""
    pages = set(table.ravel().tolist())
    if len(pages) != table.size:
        raise InvariantError("Snapshots of a step name a page twice.")
    if pages.isdisjoint(written):
        return
    size = arena.layout.block_size
    for row in rows:
        own = row.block_table[row.start // size : arena.layout.blocks_for(row.start + len(row.token_ids))]
        shared = pages.intersection(row.state_table) | pages.intersection(own)
        if shared:
            raise InvariantError(
                f"Request {row.request_id!r} writes pages {sorted(shared)}, on which snapshots are to lie."
            )
