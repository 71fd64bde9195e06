"""A step's rows as tensors: what the model reads, and nothing about requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain

import numpy as np
import torch
from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.paging import PagedKv, Ragged, StateSnapshots
from milepost.memory.layout import DUMMY_PAGE
from milepost.models.inputs import StepInputs
from milepost.runtime.arena import Arena
from milepost.runtime.snapshots import snapshots_of
from milepost.runtime.tables import check_pages
from milepost.types import Row

__all__ = ["step_inputs", "warm_up_inputs"]

_WARM_UP_LENGTHS = (
    (130, 2, 1, 1),  # whole chunks and a rest, a short chunk, decodes
    (1, 1),  # decodes alone: few tokens take kernels of their own
)


def step_inputs(rows: Sequence[Row], arena: Arena) -> StepInputs:
    """Lay rows end to end and their tables side by side.

    Args:
        rows: the batch's rows, at least one; their order is the order of the tensors.
        arena: where their pages lie.

    Raises:
        InvariantError: a row without tokens, or a table or snapshot that does not fit the row or the
            arena.
    """
    offsets = [0, *accumulate(len(row.token_ids) for row in rows)]
    sampled = [end - 1 for row, end in zip(rows, offsets[1:], strict=True) if row.samples]
    return StepInputs(
        token_ids=_ints(chain.from_iterable(row.token_ids for row in rows), offsets[-1]),
        ragged=Ragged(cu_seqlens=torch.tensor(offsets), starts=torch.tensor([row.start for row in rows])),
        state=arena.states(_state_tables(rows, arena), snapshots_of(rows, arena)),
        kv=PagedKv(cache=arena.kv, block_table=_block_tables(rows, arena)),
        sample_index=torch.tensor(sampled, dtype=torch.int64),
    )


def warm_up_inputs(arena: Arena) -> list[StepInputs]:
    """Steps that read and write nothing but the dummy page, and take every kind of row.

    Every row leaves a snapshot on its way or at its end.
    """
    return [_warm_up_step(arena, lengths) for lengths in _WARM_UP_LENGTHS]


def _warm_up_step(arena: Arena, lengths: Sequence[int]) -> StepInputs:
    rows, offsets = len(lengths), [0, *accumulate(lengths)]
    tables = torch.full((rows, arena.layout.pages_per_state), DUMMY_PAGE)
    ends = [begin + (length + 1) // 2 for begin, length in zip(offsets, lengths, strict=False)]
    snapshots = StateSnapshots(torch.arange(rows), torch.tensor(ends), tables)
    blocks = arena.layout.blocks_for(max(lengths))
    return StepInputs(
        token_ids=torch.zeros(offsets[-1], dtype=torch.int64),
        ragged=Ragged(cu_seqlens=torch.tensor(offsets), starts=torch.zeros(rows, dtype=torch.int64)),
        state=arena.states(tables, snapshots),
        kv=PagedKv(cache=arena.kv, block_table=torch.full((rows, blocks), DUMMY_PAGE)),
        sample_index=torch.tensor(offsets[1:]) - 1,
    )


def _ints(values: chain[int], count: int) -> Tensor:
    return torch.from_numpy(np.fromiter(values, dtype=np.int64, count=count))


def _state_tables(rows: Sequence[Row], arena: Arena) -> Tensor:
    """Page of each logical page of each row's state: [rows, pages_per_state] int64."""
    pages = arena.layout.pages_per_state
    tables = np.empty((len(rows), pages), dtype=np.int64)
    for index, row in enumerate(rows):
        if len(row.state_table) != pages:
            raise InvariantError(
                f"Request {row.request_id!r}: a state takes {pages} pages, "
                f"its table has {len(row.state_table)}."
            )
        tables[index] = row.state_table
    check_pages(rows, tables, arena)
    if not tables.all():
        raise InvariantError("A request holds the dummy page as a part of its state.")
    return torch.from_numpy(tables)


def _block_tables(rows: Sequence[Row], arena: Arena) -> Tensor:
    """Page of each block that holds a row's tokens, this step's too: [rows, max_blocks] int64.

    A table may be longer than the row needs yet; what the row doesn't need is left out.
    """
    needed = [_num_blocks(row, arena) for row in rows]
    tables = np.full((len(rows), max(needed)), DUMMY_PAGE, dtype=np.int64)
    for index, (row, count) in enumerate(zip(rows, needed, strict=True)):
        if len(row.block_table) < count:
            raise InvariantError(
                f"Request {row.request_id!r}: {row.start + len(row.token_ids)} tokens need {count} blocks, "
                f"its table has {len(row.block_table)}."
            )
        # As an array first: slicing a table makes a list, which costs far more at long contexts.
        tables[index, :count] = np.asarray(row.block_table)[:count]
        if not tables[index, :count].all():
            raise InvariantError(f"Request {row.request_id!r} holds the dummy page as a block.")
    check_pages(rows, tables, arena)
    return torch.from_numpy(tables)


def _num_blocks(row: Row, arena: Arena) -> int:
    if not row.token_ids:
        raise InvariantError(f"Request {row.request_id!r} has a row without tokens.")
    return arena.layout.blocks_for(row.start + len(row.token_ids))
