"""Cutting a batch's rows into chunks, and ordering them, before any arithmetic.

Rows of one token take the step; longer ones are cut at absolute multiples of `CHUNK` tokens, so that
where a row is cut depends on positions alone and not on how a prompt was split into steps. A row is
also cut where it leaves a snapshot, since the state exists between pieces only; a snapshot on the
grid, or at the row's end, cuts nothing that isn't cut anyway.

    wave n      the n-th pieces of all rows: independent of each other, all after wave n - 1
    bucket      the pieces of one slab that are padded to the same size; a wave's are consecutive
    slab        consecutive waves whose state-free part is computed together, sized to stay in cache
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.kernels.paging import Ragged, StateSnapshots

__all__ = ["CHUNK", "Bucket", "Plan", "Scan", "Slab", "plan_rows"]

CHUNK = 64
_SMALLEST_BUCKET = 16


@dataclass(frozen=True)
class Bucket:
    """Pieces padded to one size.

    Attributes:
        size: tokens of each piece, padding included; a power of two.
        spans: (first token, number of tokens) of each piece.
        begins: [pieces] int64, first token of each piece.
        lengths: [pieces] int64, tokens of each piece.
    """

    size: int
    spans: tuple[tuple[int, int], ...]
    begins: Tensor
    lengths: Tensor


@dataclass(frozen=True)
class Scan:
    """One wave's pieces of one bucket.

    Attributes:
        bucket: index of the bucket in its slab.
        begin: first piece in the bucket.
        end: one past the last piece.
        rows: [end - begin] int64, which of the plan's chunked rows each piece belongs to; None when
            the pieces are those of all chunked rows, in order.
        leaves: (chunked row, number of the snapshot) for each snapshot right behind one of the pieces.
    """

    bucket: int
    begin: int
    end: int
    rows: Tensor | None
    leaves: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Slab:
    """Buckets computed together, and the order in which states pass through their pieces."""

    buckets: tuple[Bucket, ...]
    scans: tuple[Scan, ...]


@dataclass(frozen=True)
class Plan:
    """How one batch is computed.

    Attributes:
        step_rows: [steps] int64, rows of one token.
        step_tokens: [steps] int64, their tokens.
        step_leaves: [leaving] int64, those of all rows of one token that leave a snapshot, in order.
        step_snapshots: [leaving] int64, numbers of their snapshots.
        chunk_rows: [chunked] int64, rows of more tokens.
        slabs: the chunked rows' work, in order.
    """

    step_rows: Tensor
    step_tokens: Tensor
    step_leaves: Tensor
    step_snapshots: Tensor
    chunk_rows: Tensor
    slabs: tuple[Slab, ...]


@dataclass(frozen=True)
class _Piece:
    row: int  # among the chunked rows
    begin: int  # first token
    length: int
    snapshot: int | None  # number of the snapshot right behind it

    @property
    def size(self) -> int:
        return max(_SMALLEST_BUCKET, 1 << (self.length - 1).bit_length())


# Every KDA layer of a step asks for the same plan.
_plans: weakref.WeakKeyDictionary[Ragged, tuple[int, StateSnapshots | None, Plan]] = (
    weakref.WeakKeyDictionary()
)


def plan_rows(ragged: Ragged, slab_tokens: int, snapshots: StateSnapshots | None = None) -> Plan:
    """Plan a batch.

    Args:
        ragged: the rows.
        slab_tokens: tokens that a slab should not exceed; it holds at least one wave.
        snapshots: what the rows leave.
    """
    known = _plans.get(ragged)
    if known is not None and known[0] == slab_tokens and known[1] is snapshots:
        return known[2]
    plan = _plan(ragged, slab_tokens, snapshots)
    _plans[ragged] = (slab_tokens, snapshots, plan)
    return plan


def _plan(ragged: Ragged, slab_tokens: int, snapshots: StateSnapshots | None) -> Plan:
    offsets = ragged.offsets
    lengths = [end - begin for begin, end in itertools.pairwise(offsets)]
    step_rows = [row for row, length in enumerate(lengths) if length == 1]
    chunk_rows = [row for row, length in enumerate(lengths) if length > 1]
    marks = [] if snapshots is None else list(enumerate(snapshots.row_list))
    leaving = [(row, number) for number, row in marks if lengths[row] == 1]
    pieces = [
        _cut(i, offsets[row], lengths[row], ragged.start_list[row], _ends_of(row, snapshots))
        for i, row in enumerate(chunk_rows)
    ]
    waves = [
        [of_row[n] for of_row in pieces if n < len(of_row)]
        for n in range(max((len(of_row) for of_row in pieces), default=0))
    ]
    return Plan(
        step_rows=_ints(step_rows),
        step_tokens=_ints([offsets[row] for row in step_rows]),
        step_leaves=_ints([row for row, _ in leaving]),
        step_snapshots=_ints([number for _, number in leaving]),
        chunk_rows=_ints(chunk_rows),
        slabs=tuple(_slab(part, len(chunk_rows)) for part in _group(waves, slab_tokens)),
    )


def _ints(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _ends_of(row: int, snapshots: StateSnapshots | None) -> dict[int, int]:
    return {} if snapshots is None else {end: number for number, end in snapshots.of_row(row)}


def _cut(row: int, begin: int, length: int, start: int, ends: dict[int, int]) -> list[_Piece]:
    """Pieces of one row, cut where the position is a multiple of the chunk and at snapshots.

    Args:
        row: its number among the chunked rows.
        begin: its first token.
        length: its tokens.
        start: position of the first.
        ends: of its snapshots: end -> number.
    """
    grid = range(begin + CHUNK - start % CHUNK, begin + length, CHUNK)
    cuts = sorted({*grid, *ends, begin + length})
    return [
        _Piece(row=row, begin=first, length=end - first, snapshot=ends.get(end))
        for first, end in itertools.pairwise([begin, *cuts])
    ]


def _group(waves: list[list[_Piece]], slab_tokens: int) -> list[list[list[_Piece]]]:
    """Put consecutive waves together up to `slab_tokens` padded tokens."""
    groups: list[list[list[_Piece]]] = []
    room = 0
    for wave in waves:
        tokens = sum(piece.size for piece in wave)
        if not groups or tokens > room:
            groups.append([])
            room = slab_tokens
        groups[-1].append(wave)
        room -= tokens
    return groups


def _slab(waves: list[list[_Piece]], num_rows: int) -> Slab:
    sizes = sorted({piece.size for wave in waves for piece in wave})
    members: list[list[_Piece]] = [[] for _ in sizes]
    scans = []
    for wave in waves:
        for bucket, size in enumerate(sizes):
            here = [piece for piece in wave if piece.size == size]
            if here:
                begin = len(members[bucket])
                members[bucket].extend(here)
                rows = torch.tensor([piece.row for piece in here]) if len(here) < num_rows else None
                leaves = tuple((p.row, p.snapshot) for p in here if p.snapshot is not None)
                scans.append(
                    Scan(bucket=bucket, begin=begin, end=begin + len(here), rows=rows, leaves=leaves)
                )
    buckets = tuple(_bucket(size, pieces) for size, pieces in zip(sizes, members, strict=True))
    return Slab(buckets=buckets, scans=tuple(scans))


def _bucket(size: int, pieces: list[_Piece]) -> Bucket:
    spans = tuple((piece.begin, piece.length) for piece in pieces)
    return Bucket(
        size=size,
        spans=spans,
        begins=torch.tensor([begin for begin, _ in spans]),
        lengths=torch.tensor([length for _, length in spans]),
    )
