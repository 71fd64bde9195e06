"""The messages of a step, from the scheduler to an executor and back."""

from __future__ import annotations

import enum
from collections.abc import Sequence

import msgspec

from milepost.types.outputs import TokenLogprobs
from milepost.types.requests import SymbolicTokens, TokenIds
from milepost.types.sampling import SamplingParams

__all__ = [
    "Batch",
    "BatchResult",
    "NewRequest",
    "Row",
    "RowResult",
    "SnapshotOrder",
    "Tier",
    "Transfer",
    "TransferResult",
]


class NewRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What an executor must know of a request, sent once with its first row.

    After a preemption the request is not sent anew: its sampling state (penalty counts, seed
    position) belongs to the tokens it has drawn, which a preemption keeps.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...] | SymbolicTokens
    sampling: SamplingParams


class SnapshotOrder(msgspec.Struct, frozen=True, kw_only=True):
    """One snapshot that a row leaves: its state after exactly `position` tokens, written to `pages`.

    Attributes:
        position: tokens of the sequence that the state has seen; ``start < position <= start +
            len(token_ids)`` of its row. Any token may be asked for, and any number of them.
        pages: page of each logical page of the snapshot, as in a state table; nobody else's.
    """

    position: int
    pages: tuple[int, ...]


class Tier(enum.Enum):
    """Where pages can lie. Every tier numbers its pages from 0, all of the arena's page size."""

    ARENA = "arena"
    HOST = "host"
    DISK = "disk"


class Transfer(msgspec.Struct, frozen=True, kw_only=True):
    """Pages to copy from one tier to another.

    From the arena to the host it is done before anything of its step runs. All others run in the
    background from their step on, in order; source and target pages are left alone until the result is
    in. One from the disk to the disk has no pages: it forgets everything there, for later processes too.

    Attributes:
        transfer_id: unique among all transfers.
        source: tier that is read.
        target: tier that is written.
        pages: (source page, target page) pairs.
        record: for a transfer to disk, what makes its pages findable after a restart; opaque.
    """

    transfer_id: int
    source: Tier
    target: Tier
    pages: tuple[tuple[int, int], ...]
    record: bytes = b""

    @property
    def is_immediate(self) -> bool:
        """Whether it is done before anything of its step runs, and not in the background."""
        return self.source is Tier.ARENA and self.target is Tier.HOST


class TransferResult(msgspec.Struct, frozen=True, kw_only=True):
    """A transfer has ended. With an `error` nothing that it wrote may be used."""

    transfer_id: int
    error: str | None = None


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The part of one request that a step computes.

    ``token_ids`` are the tokens at positions ``start .. start + len(token_ids) - 1``; KV and state
    already hold exactly ``start`` tokens. The tables are live references: an executor reads them during
    `run`. A table belongs to one life of one request and only ever grows, so the same object in a later
    step names the same pages as far as it went; another life brings other objects.

    Attributes:
        request_id: whose tokens these are.
        start: tokens computed before this step; 0 means that the state starts from zero.
        token_ids: the tokens of this chunk, at least one.
        block_table: page of each block; block i holds tokens i*block_size .. (i+1)*block_size-1.
        state_table: page of each logical page of the state.
        samples: whether the logits of the last token are drawn from. False for a chunk that
            does not reach the last known token.
        num_output_tokens: tokens the request has drawn before this step (the random draw's index).
        snapshots: states to leave behind, by ascending position.
    """

    request_id: str
    start: int
    token_ids: TokenIds
    block_table: Sequence[int]
    state_table: Sequence[int]
    samples: bool
    num_output_tokens: int = 0
    snapshots: tuple[SnapshotOrder, ...] = ()


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Everything an executor does in one step, in this order.

    Forget and learn; copy from the arena to the host; scrub; copy pages; start the other transfers;
    run the rows, which leave their snapshots.

    Attributes:
        step: number of the step, counting from 0.
        rows: one row per request at most.
        new_requests: requests that appear in `rows` for the first time.
        released: ids of requests that will not come again (finished, aborted, failed).
        scrubs: pages to fill with zeros before anything runs: whatever failed requests held, KV and state.
        tail_scrubs: (page, tokens) pairs: KV pages to fill with zeros behind their first tokens. A failed
            request wrote there, and others rely on what is before.
        copies: (source page, target page) pairs: a consumer's private copy of a snapshot, and of the
            last block below it when that is partly filled. No target is also a source.
        transfers: copies between tiers; see `Transfer`.
        waits: a batch without rows whose executor returns once at least one transfer has ended,
            because nothing else can go on.
    """

    step: int
    rows: tuple[Row, ...]
    new_requests: tuple[NewRequest, ...] = ()
    released: tuple[str, ...] = ()
    scrubs: tuple[int, ...] = ()
    tail_scrubs: tuple[tuple[int, int], ...] = ()
    copies: tuple[tuple[int, int], ...] = ()
    transfers: tuple[Transfer, ...] = ()
    waits: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens that this step computes."""
        return sum(len(row.token_ids) for row in self.rows)


class RowResult(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one row: the drawn tokens, or why it failed.

    ``token_ids`` is empty when the row did not sample. ``error`` is a sentence for the user; the
    request then ends with `FinishReason.ERROR` and nothing that it wrote is reused. ``snapshots``
    are the positions of the ordered snapshots that were written and are finite; the others are
    not there.
    """

    request_id: str
    token_ids: tuple[int, ...] = ()
    snapshots: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] = ()
    error: str | None = None


class BatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to the `Batch` of the same step: one result per row, in any order.

    Attributes:
        step: of the batch.
        rows: a result for each row; none at all when the rows failed together.
        transfers: those that have ended since the result before, this batch's or older ones.
        failure: why the rows could not be computed, as a sentence for the user; None when they were.
            All that a batch does before its rows is done then, nothing that the rows wrote may be read,
            no token was drawn and no snapshot left. The executor is well: it can run the next batch.
    """

    step: int
    rows: tuple[RowResult, ...]
    transfers: tuple[TransferResult, ...] = ()
    failure: str | None = None
