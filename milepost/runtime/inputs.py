"""A step's rows as tensors: what the model reads, and nothing about requests."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, chain
from operator import attrgetter

import torch

from milepost.errors import InvariantError
from milepost.kernels.paging import PagedKv, Ragged, StateSnapshots
from milepost.memory.layout import DUMMY_PAGE
from milepost.models.inputs import StepInputs
from milepost.runtime.arena import Arena
from milepost.runtime.int_buffer import IntBuffer
from milepost.runtime.snapshots import snapshots_of
from milepost.runtime.table_buffer import TableBuffer
from milepost.types import Row

__all__ = ["InputBuffers", "warm_up_inputs"]

_WARM_UP_LENGTHS = (
    (130, 2, 1, 1),  # whole chunks and a rest, a short chunk, decodes
    (1,),  # one decode, as a lone request goes on after its prompt
)

_snapshots = attrgetter("snapshots")


class InputBuffers:
    """Lays rows end to end and their tables side by side, in memory that all steps share.

    Only what differs from the step before is written: in steady decode a token and a start for each row,
    and a page for those that begin a block. Addresses and strides stay as they are until a step needs
    more memory than any before; then memory grows to a power of two and `generation` goes up. The
    tensors of a step are overwritten by the next.

    Args:
        arena: where the rows' pages lie.

    Attributes:
        arena: the same.
    """

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self._token_ids, self._starts = IntBuffer(), IntBuffer()
        self._offsets, self._sampled = IntBuffer(), IntBuffer()
        self._blocks = TableBuffer(arena.num_pages, "block", _check_block_table)
        self._states = TableBuffer(
            arena.num_pages,
            "part of its state",
            _check_state_table,
            capacity=arena.layout.pages_per_state,  # all that it ever has, so rows lie without a gap
        )
        # What offsets and sample index were made from, and what is made from it.
        self._lengths: list[int] = []
        self._samples: list[bool] = []
        self._state_pages: list[int] = []
        self._num_tokens = 0
        self._num_sampled = 0

    @property
    def generation(self) -> int:
        """Changes exactly when the address or the stride of any tensor does."""
        buffers = (self._token_ids, self._starts, self._offsets, self._sampled, self._blocks, self._states)
        return sum(buffer.generation for buffer in buffers)

    def fill(self, rows: Sequence[Row]) -> StepInputs:
        """The tensors of a step, until the next one is filled.

        Args:
            rows: the batch's rows, at least one; their order is the order of the tensors.

        Raises:
            InvariantError: a row without tokens, or a table or snapshot that does not fit the row or the
                arena.
        """
        arena, count = self.arena, len(rows)
        tokens = [row.token_ids for row in rows]
        self._lay_out(rows, [len(chunk) for chunk in tokens], [row.samples for row in rows])
        total = self._num_tokens
        self._token_ids.write(list(chain.from_iterable(tokens)))
        starts = [row.start for row in rows]
        self._starts.write(starts)
        block_size = arena.layout.block_size
        blocks = [
            -(-(start + length) // block_size) for start, length in zip(starts, self._lengths, strict=True)
        ]
        state_table = self._states.fill(rows, [row.state_table for row in rows], self._state_pages)
        block_table = self._blocks.fill(rows, [row.block_table for row in rows], blocks)
        return StepInputs(
            token_ids=self._token_ids.tensor(total),
            ragged=Ragged(cu_seqlens=self._offsets.tensor(count + 1), starts=self._starts.tensor(count)),
            state=arena.states(state_table, self._snapshots(rows, starts, blocks)),
            kv=PagedKv(cache=arena.kv, block_table=block_table),
            sample_index=self._sampled.tensor(self._num_sampled),
        )

    def _lay_out(self, rows: Sequence[Row], lengths: list[int], samples: list[bool]) -> None:
        """Offsets and sample index, which stay the same for as long as every row decodes."""
        if lengths == self._lengths and samples == self._samples:
            return
        if not min(lengths):
            row = rows[lengths.index(0)]
            raise InvariantError(f"Request {row.request_id!r} has a row without tokens.")
        ends = list(accumulate(lengths))
        sampled = [end - 1 for end, is_sampled in zip(ends, samples, strict=True) if is_sampled]
        self._offsets.write([0, *ends])
        self._sampled.write(sampled)
        self._state_pages = [self.arena.layout.pages_per_state] * len(lengths)
        self._num_tokens, self._num_sampled = ends[-1], len(sampled)
        self._lengths, self._samples = lengths, samples

    def _snapshots(
        self, rows: Sequence[Row], starts: Sequence[int], blocks: Sequence[int]
    ) -> StateSnapshots | None:
        if not any(map(_snapshots, rows)):
            return None
        # Only the blocks that this step writes: a whole table is as long as the context.
        block_size = self.arena.layout.block_size
        written = self._blocks.held([start // block_size for start in starts], blocks)
        written += self._states.held([0] * len(rows), self._state_pages)
        return snapshots_of(rows, self.arena, written)


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


def _check_state_table(row: Row, count: int) -> None:
    if len(row.state_table) != count:
        raise InvariantError(
            f"Request {row.request_id!r}: a state takes {count} pages, its table has {len(row.state_table)}."
        )


def _check_block_table(row: Row, count: int) -> None:
    if len(row.block_table) < count:
        raise InvariantError(
            f"Request {row.request_id!r}: {row.start + len(row.token_ids)} tokens need {count} blocks, "
            f"its table has {len(row.block_table)}."
        )
