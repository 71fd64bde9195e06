"""A batch as tensors: offsets, padding with the dummy page, and refusal of tables that can't be."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

import pytest
import torch

from milepost.errors import InvariantError
from milepost.memory.layout import PagedLayout
from milepost.memory.tables import PageTable
from milepost.models.inputs import StepInputs
from milepost.runtime.arena import Arena
from milepost.runtime.inputs import InputBuffers
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


def blocks_of(inputs: StepInputs) -> list[list[int]]:
    """The block tables without the columns that are padding in every row."""
    table = inputs.kv.block_table
    columns = int(table.any(dim=0).nonzero().max()) + 1
    blocks: list[list[int]] = table[:, :columns].tolist()
    return blocks


def test_rows_are_laid_end_to_end(arena: Arena, layout: PagedLayout) -> None:
    state = list(range(20, 20 + layout.pages_per_state))
    rows = [
        row(layout, start=0, count=20, blocks=[9, 8, 7]),
        row(layout, start=33, count=1, blocks=[3, 4, 5], state=state),
        row(layout, start=16, count=3, blocks=(6, 2), samples=False),
    ]
    inputs = InputBuffers(arena).fill(rows)
    assert inputs.token_ids.tolist() == [*range(20), 33, 16, 17, 18]
    assert inputs.ragged.cu_seqlens.tolist() == [0, 20, 21, 24]
    assert inputs.ragged.starts.tolist() == [0, 33, 16]
    assert inputs.sample_index.tolist() == [19, 20]
    # The first row's table is longer than its 20 tokens need; padding is the dummy page.
    assert blocks_of(inputs) == [[9, 8, 0], [3, 4, 5], [6, 2, 0]]
    assert inputs.state.table[1].tolist() == state
    assert inputs.state.tiles_per_page == layout.tiles_per_page
    tensors = (inputs.token_ids, inputs.kv.block_table, inputs.state.table, inputs.sample_index)
    assert {tensor.dtype for tensor in tensors} == {torch.int64}
    assert inputs.kv.cache.data_ptr() == arena.bytes.data_ptr() == inputs.state.conv.data_ptr()


def test_nothing_sampled_is_an_empty_index(arena: Arena, layout: PagedLayout) -> None:
    inputs = InputBuffers(arena).fill([row(layout, samples=False)])
    assert inputs.sample_index.shape == (0,)
    assert inputs.sample_index.dtype == torch.int64


@pytest.mark.parametrize(
    ("start", "count", "blocks"), [(0, 16, 1), (0, 17, 2), (15, 1, 1), (16, 1, 2), (15, 2, 2)]
)
def test_a_block_holds_its_size(
    arena: Arena, layout: PagedLayout, start: int, count: int, blocks: int
) -> None:
    chunk = row(layout, start=start, count=count, blocks=range(10, 10 + blocks))
    assert blocks_of(InputBuffers(arena).fill([chunk])) == [[*range(10, 10 + blocks)]]
    with pytest.raises(InvariantError, match=f"need {blocks} blocks, its table has {blocks - 1}"):
        InputBuffers(arena).fill([row(layout, start=start, count=count, blocks=range(10, 9 + blocks))])


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
            InputBuffers(arena).fill([row(layout), wrong])


def test_snapshots_are_laid_side_by_side(arena: Arena, layout: PagedLayout) -> None:
    pages = layout.pages_per_state
    tables = [list(range(first, first + pages)) for first in range(33 - 3 * pages, 33, pages)]
    state = list(range(1 + pages, 1 + 2 * pages))
    rows = [
        row(layout, start=0, count=20, blocks=[39, 38], snapshots=[(1, tables[0]), (20, tables[1])]),
        row(layout, start=9, count=1, blocks=[37], state=state),
        row(layout, start=33, count=5, blocks=[36, 35, 34], state=state, snapshots=[(35, tables[2])]),
    ]
    snapshots = InputBuffers(arena).fill(rows).state.snapshots
    assert snapshots is not None
    assert snapshots.rows.tolist() == [0, 0, 2]
    assert snapshots.ends.tolist() == [1, 20, 23]
    assert snapshots.table.tolist() == tables
    assert InputBuffers(arena).fill(rows[1:2]).state.snapshots is None


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
            InputBuffers(arena).fill([row(layout, start=16, count=20, snapshots=snapshots)])


class Life:
    """One life of a request on random pages: its tables grow, its tokens are computed step by step."""

    def __init__(self, draw: random.Random, layout: PagedLayout) -> None:
        self._draw = draw
        self._layout = layout
        self.start = draw.choice([0, draw.randrange(200)])
        self.block_table = PageTable(self._pages(layout.blocks_for(self.start)))
        self.state_table = PageTable(self._pages(layout.pages_per_state))

    def row(self) -> Row:
        """The next chunk, most often a single token."""
        return self._next(
            1 if self._draw.random() < 0.8 else self._draw.randrange(1, 60),
            samples=self._draw.random() < 0.9,
        )

    def decode(self) -> Row:
        """The next token."""
        return self._next(1, samples=True)

    def _next(self, count: int, *, samples: bool) -> Row:
        # The table may have pages to spare.
        missing = self._layout.blocks_for(self.start + count) - len(self.block_table)
        self.block_table.extend(self._pages(max(0, missing) + (self._draw.random() < 0.1)))
        row = Row(
            request_id="r",
            start=self.start,
            token_ids=tuple(self._draw.randrange(1000) for _ in range(count)),
            block_table=self.block_table,
            state_table=self.state_table,
            samples=samples,
        )
        self.start += count
        return row

    def _pages(self, count: int) -> list[int]:
        return [self._draw.randrange(1, 40) for _ in range(count)]


def as_lists(inputs: StepInputs) -> list[object]:
    ragged = inputs.ragged
    tensors = (inputs.token_ids, ragged.cu_seqlens, ragged.starts, inputs.sample_index, inputs.state.table)
    assert all(tensor.is_contiguous() for tensor in (*tensors, inputs.kv.block_table))
    return [*(tensor.tolist() for tensor in tensors), blocks_of(inputs)]


def from_nothing(rows: Sequence[Row], layout: PagedLayout) -> list[object]:
    """The same tensors as plain lists, from the rows alone."""
    blocks = [list(row.block_table)[: layout.blocks_for(row.start + len(row.token_ids))] for row in rows]
    widest = max(map(len, blocks))
    ends = list(itertools.accumulate(len(row.token_ids) for row in rows))
    return [
        [token for row in rows for token in row.token_ids],
        [0, *ends],
        [row.start for row in rows],
        [end - 1 for row, end in zip(rows, ends, strict=True) if row.samples],
        [list(row.state_table) for row in rows],
        [table + [0] * (widest - len(table)) for table in blocks],
    ]


def test_whatever_came_before_a_step_has_the_tensors_that_its_rows_alone_give(
    arena: Arena, layout: PagedLayout
) -> None:
    """Rows come, go, change places, stand still for a step, grow, and end in an error in between."""
    seed = random.randrange(1 << 32)
    draw = random.Random(seed)
    buffers, alive = InputBuffers(arena), [Life(draw, layout)]
    for _ in range(300):
        alive = [life for life in alive if draw.random() < 0.97]
        alive += [Life(draw, layout) for _ in range(draw.choice([0, 0, 0, 0, 1, 3]) or not alive)]
        if draw.random() < 0.1:
            draw.shuffle(alive)
        rows = [life.row() for life in alive if draw.random() < 0.98] or [alive[0].row()]
        if draw.random() < 0.05:
            wrong = row(layout, blocks=(draw.choice([-1, 0, 40]),), state=[1] * layout.pages_per_state)
            with pytest.raises(InvariantError):
                buffers.fill([*rows[: draw.randrange(len(rows))], wrong, *rows])
        assert as_lists(buffers.fill(rows)) == from_nothing(rows, layout), f"seed {seed}"


def test_a_table_that_is_used_from_an_earlier_place_again(arena: Arena, layout: PagedLayout) -> None:
    """Tokens may be computed anew; what lies behind them is padding then."""
    buffers = InputBuffers(arena)
    long, short = row(layout, start=33), row(layout, start=3)
    assert blocks_of(buffers.fill([long])) == [[30, 31, 32]]
    assert blocks_of(buffers.fill([short, long])) == [[30, 0, 0], [30, 31, 32]]
    assert blocks_of(buffers.fill([long, short])) == [[30, 31, 32], [30, 0, 0]]


def addresses(inputs: StepInputs) -> list[tuple[int, int]]:
    """Address and stride of every tensor that the step has."""
    ragged, tables = inputs.ragged, (inputs.state.table, inputs.kv.block_table)
    lists = (inputs.token_ids, ragged.cu_seqlens, ragged.starts, inputs.sample_index)
    return [(tensor.data_ptr(), tensor.stride(0)) for tensor in (*lists, *tables)]


@pytest.mark.parametrize("num_rows", [1, 3, 70])
def test_decoding_moves_no_tensor_unless_the_generation_says_so(
    arena: Arena, layout: PagedLayout, num_rows: int
) -> None:
    """Over 600 tokens, so over many blocks; with other steps in between, and rows that change."""
    draw = random.Random(num_rows)
    buffers = InputBuffers(arena)
    lives = [Life(draw, layout) for _ in range(num_rows)]
    seen: dict[int, list[tuple[int, int]]] = {}
    for step in range(600):
        if step % 50 == 49:
            lives[draw.randrange(num_rows)] = Life(draw, layout)
            buffers.fill([lives[0].row()])
        rows = [life.decode() for life in lives]
        inputs = buffers.fill(rows)
        assert as_lists(inputs) == from_nothing(rows, layout)
        assert seen.setdefault(buffers.generation, addresses(inputs)) == addresses(inputs)
    assert len(seen) <= 8, "memory grows to powers of two"
