"""A batch as tensors: offsets, padding with the dummy page, and refusal of tables that can't be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from milepost.errors import InvariantError
from milepost.memory.layout import PagedLayout
from milepost.runtime.arena import Arena
from milepost.runtime.inputs import step_inputs
from milepost.types import Row, SnapshotOrder

BLOCK = 16


@pytest.fixture
def arena(layout: PagedLayout) -> Arena:
    return Arena(layout, 40, kv_dtype=torch.float32, conv_dtype=torch.float32)


def row(
    layout: PagedLayout,
    *,
    start: int = 0,
    count: int = 1,
    blocks: Sequence[int] = (30, 31, 32),
    state: Sequence[int] | None = None,
    samples: bool = True,
    snapshots: Sequence[tuple[int, Sequence[int]]] = (),
) -> Row:
    return Row(
        request_id="r",
        start=start,
        token_ids=tuple(range(start, start + count)),
        block_table=blocks,
        state_table=list(range(1, 1 + layout.pages_per_state)) if state is None else state,
        samples=samples,
        snapshots=tuple(SnapshotOrder(position=at, pages=tuple(pages)) for at, pages in snapshots),
    )


def test_rows_are_laid_end_to_end(arena: Arena, layout: PagedLayout) -> None:
    state = list(range(20, 20 + layout.pages_per_state))
    rows = [
        row(layout, start=0, count=20, blocks=[9, 8, 7]),
        row(layout, start=33, count=1, blocks=[3, 4, 5], state=state),
        row(layout, start=16, count=3, blocks=(6, 2), samples=False),
    ]
    inputs = step_inputs(rows, arena)
    assert inputs.token_ids.tolist() == [*range(20), 33, 16, 17, 18]
    assert inputs.ragged.cu_seqlens.tolist() == [0, 20, 21, 24]
    assert inputs.ragged.starts.tolist() == [0, 33, 16]
    assert inputs.sample_index.tolist() == [19, 20]
    # The first row's table is longer than its 20 tokens need; padding is the dummy page.
    assert inputs.kv.block_table.tolist() == [[9, 8, 0], [3, 4, 5], [6, 2, 0]]
    assert inputs.state.table[1].tolist() == state
    assert inputs.state.tiles_per_page == layout.tiles_per_page
    tensors = (inputs.token_ids, inputs.kv.block_table, inputs.state.table, inputs.sample_index)
    assert {tensor.dtype for tensor in tensors} == {torch.int64}
    assert inputs.kv.cache.data_ptr() == arena.bytes.data_ptr() == inputs.state.conv.data_ptr()


def test_nothing_sampled_is_an_empty_index(arena: Arena, layout: PagedLayout) -> None:
    inputs = step_inputs([row(layout, samples=False)], arena)
    assert inputs.sample_index.shape == (0,)
    assert inputs.sample_index.dtype == torch.int64


@pytest.mark.parametrize(
    ("start", "count", "blocks"), [(0, 16, 1), (0, 17, 2), (15, 1, 1), (16, 1, 2), (15, 2, 2)]
)
def test_a_block_holds_its_size(
    arena: Arena, layout: PagedLayout, start: int, count: int, blocks: int
) -> None:
    chunk = row(layout, start=start, count=count, blocks=range(10, 10 + blocks))
    assert step_inputs([chunk], arena).kv.block_table.shape == (1, blocks)
    with pytest.raises(InvariantError, match=f"need {blocks} blocks, its table has {blocks - 1}"):
        step_inputs([row(layout, start=start, count=count, blocks=range(10, 9 + blocks))], arena)


def test_tables_that_cannot_be_are_refused(arena: Arena, layout: PagedLayout) -> None:
    state = list(range(1, 1 + layout.pages_per_state))
    for wrong, message in [
        (row(layout, count=0), "without tokens"),
        (row(layout, blocks=[40]), r"\['r'\] name pages outside the arena's 40"),
        (row(layout, blocks=[-1]), "outside the arena"),
        (row(layout, blocks=[0]), "dummy page as a block"),
        (row(layout, state=state[:-1]), f"takes {len(state)} pages, its table has {len(state) - 1}"),
        (row(layout, state=[*state[:-1], 40]), "outside the arena"),
        (row(layout, state=[0, *state[1:]]), "dummy page as a part of its state"),
    ]:
        with pytest.raises(InvariantError, match=message):
            step_inputs([row(layout), wrong], arena)


def test_snapshots_are_laid_side_by_side(arena: Arena, layout: PagedLayout) -> None:
    pages = layout.pages_per_state
    tables = [list(range(first, first + pages)) for first in range(33 - 3 * pages, 33, pages)]
    state = list(range(1 + pages, 1 + 2 * pages))
    rows = [
        row(layout, start=0, count=20, blocks=[39, 38], snapshots=[(1, tables[0]), (20, tables[1])]),
        row(layout, start=9, count=1, blocks=[37], state=state),
        row(layout, start=33, count=5, blocks=[36, 35, 34], state=state, snapshots=[(35, tables[2])]),
    ]
    snapshots = step_inputs(rows, arena).state.snapshots
    assert snapshots is not None
    assert snapshots.rows.tolist() == [0, 0, 2]
    assert snapshots.ends.tolist() == [1, 20, 23]
    assert snapshots.table.tolist() == tables
    assert step_inputs(rows[1:2], arena).state.snapshots is None


def test_snapshots_that_cannot_be_are_refused(arena: Arena, layout: PagedLayout) -> None:
    pages = layout.pages_per_state
    good, other = list(range(10, 10 + pages)), list(range(20, 20 + pages))
    for snapshots, message in [
        ([(16, good)], r"behind token 16 and up to 36. Given: \[16\]"),
        ([(37, good)], r"behind token 16 and up to 36. Given: \[37\]"),
        ([(20, good), (20, other)], r"one after the other .* Given: \[20, 20\]"),
        ([(21, good), (20, other)], r"one after the other .* Given: \[21, 20\]"),
        ([(20, good[1:])], f"takes {pages} pages, its snapshot after 20 tokens has {pages - 1}"),
        ([(20, [*good, 30])], f"takes {pages} pages, its snapshot after 20 tokens has {pages + 1}"),
        ([(20, [0, *good[1:]])], "snapshot after 20 tokens is to lie on the dummy page"),
        ([(20, [40, *good[1:]])], r"\['r'\] name pages outside the arena's 40"),
        ([(20, [-1, *good[1:]])], "outside the arena"),
        ([(20, good), (21, [good[0], *other[1:]])], "name a page twice"),
        ([(20, [*good[:-1], good[0]])], "name a page twice"),
        ([(20, [1, *good[1:]])], r"writes pages \[1\], on which snapshots are to lie"),
        ([(20, [31, *good[1:]])], r"writes pages \[31\], on which snapshots are to lie"),
    ]:
        with pytest.raises(InvariantError, match=message):
            step_inputs([row(layout, start=16, count=20, snapshots=snapshots)], arena)
