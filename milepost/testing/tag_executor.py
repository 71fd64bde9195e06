"""An oracle without a model: an executor whose memory remembers what it stands for.

In place of numbers, every KV slot and every page of a state holds a *tag*, a hash of all tokens up
to its position. A row is only run when the pages that it names carry exactly the tags of its own
request's tokens, so a wrong page, a lost step, a state that is one token off or one that belongs to
somebody else stops the test at once. The tokens that it draws are a pure function of all tokens
before them, so the output of a request is known beforehand, however it is scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from milepost.errors import InvariantError
from milepost.memory.layout import Layout
from milepost.testing.tag_memory import StateTag, TagMemory
from milepost.testing.tag_tiers import TagTiers
from milepost.testing.tags import drawn_token, expected_output, extend_tag, root_tag, tag_of
from milepost.types import Batch, BatchResult, NewRequest, Row, RowResult, TransferResult

__all__ = ["TagExecutor", "drawn_token", "expected_output", "extend_tag", "tag_of"]


class TagExecutor:
    """Runs batches on tags and raises `InvariantError` at the first thing that is not right.

    Args:
        layout: how sequences lie in pages; blocks of one page each.
        num_pages: pages of the memory, the dummy page included.
        vocab_size: drawn tokens are below it; small ones make tokens repeat, which finds more.
        free_pages: tells which pages nobody owns (`PagePool.free_pages`). They are poisoned before
            each step, and a row that names one of them is an error; without it, neither is done.
        cached_pages: tells which pages the prefix cache names. No step may change what they hold;
            an owner may go on filling a block behind what is cached.
        salt_of: a request's cache salt by its id, which no message carries: content of different
            salts has different tags. Without it all have the same.
        tiers: what stands behind the arena; without it a transfer is an error.

    Attributes:
        memory: the arena, for tests that look into it.
        num_rows: rows run so far.
    """

    def __init__(
        self,
        layout: Layout,
        num_pages: int,
        *,
        vocab_size: int = 2,
        free_pages: Callable[[], Iterable[int]] | None = None,
        cached_pages: Callable[[], Iterable[int]] | None = None,
        salt_of: Callable[[str], str] | None = None,
        tiers: TagTiers | None = None,
    ) -> None:
        if layout.pages_per_block != 1:
            raise InvariantError(f"TagExecutor wants blocks of one page, not {layout.pages_per_block}")
        self._layout = layout
        self._vocab_size = vocab_size
        self._salt_of = salt_of
        self.memory = TagMemory(num_pages, free_pages, cached_pages)
        self._tiers = tiers
        if tiers is not None:
            tiers.attach(self.memory)
        self._tokens: dict[str, list[int]] = {}
        # Per request, the tag of each prefix, by its length.
        self._tags: dict[str, list[int]] = {}
        self._num_drawn: dict[str, int] = {}
        self._failing: set[str] = set()
        self._failing_snapshots: set[str] = set()
        self._breaking: dict[str, int] = {}
        self._breaks_next = False
        self.num_rows = 0

    def fail_request(self, request_id: str) -> None:
        """Let the next row of `request_id` fail, and fill every page that it may write with NaN."""
        self._failing.add(request_id)

    def break_steps(self, request_id: str, position: int = 0) -> None:
        """Let every step fail as a whole in which `request_id` computes its token at `position` or behind.

        Every page that any row may write is filled with NaN, as far as it is written.
        """
        self._breaking[request_id] = position

    def break_next_step(self) -> None:
        """Let the next step with rows fail as a whole, by nobody's fault."""
        self._breaks_next = True

    def fail_snapshot(self, request_id: str) -> None:
        """Let the next snapshot that `request_id` leaves not be finite: NaN, and not reported."""
        self._failing_snapshots.add(request_id)

    def run(self, batch: Batch) -> BatchResult:
        """Carry `batch` out in the order that it describes, each part only if all that it reads is right."""
        for request_id in batch.released:
            self._forget(request_id)
        for request in batch.new_requests:
            self._learn(request)
        if self._tiers is not None:
            # What is freed by this very step is not poisoned yet.
            self._tiers.demote(batch.transfers)
        self.memory.begin()
        self.memory.scrub(batch.scrubs)
        self.memory.scrub_tails(batch.tail_scrubs)
        self.memory.copy(batch.copies)
        if self._tiers is not None:
            self._tiers.start(batch.transfers)
        self._require_disjoint(batch)
        if self._breaks(batch):
            for row in batch.rows:
                self._require_right(row)
                self._ruin(row)
            transfers = self._ended_transfers(batch)
            return BatchResult(step=batch.step, rows=(), transfers=transfers, failure="the step broke")
        # An executor may answer in any order; answering backwards finds who relies on places.
        rows = tuple(self._run_row(row) for row in reversed(batch.rows))
        return BatchResult(step=batch.step, rows=rows, transfers=self._ended_transfers(batch))

    def close(self) -> None:
        """Nothing is held."""

    def _forget(self, request_id: str) -> None:
        if self._tokens.pop(request_id, None) is None:
            raise InvariantError(f"{request_id!r} is released and was not known")
        del self._tags[request_id], self._num_drawn[request_id]
        self._failing.discard(request_id)
        self._failing_snapshots.discard(request_id)
        self._breaking.pop(request_id, None)

    def _breaks(self, batch: Batch) -> bool:
        if self._breaks_next and batch.rows:
            self._breaks_next = False
            return True
        ends = {row.request_id: row.start + len(row.token_ids) for row in batch.rows}
        return any(ends.get(request_id, 0) > position for request_id, position in self._breaking.items())

    def _learn(self, request: NewRequest) -> None:
        if request.request_id in self._tokens:
            raise InvariantError(f"{request.request_id!r} is announced twice")
        tags = [root_tag(self._salt_of(request.request_id) if self._salt_of is not None else "")]
        for token_id in request.prompt_token_ids:
            tags.append(extend_tag(tags[-1], token_id))
        self._tokens[request.request_id] = list(request.prompt_token_ids)
        self._tags[request.request_id] = tags
        self._num_drawn[request.request_id] = 0

    def _ended_transfers(self, batch: Batch) -> tuple[TransferResult, ...]:
        if batch.waits and batch.rows:
            raise InvariantError(f"step {batch.step} has rows and waits for a transfer")
        if self._tiers is not None:
            return self._tiers.finish_step(waits=batch.waits)
        if batch.waits or batch.transfers:
            raise InvariantError(f"step {batch.step} has transfers or waits for one, and there are no tiers")
        return ()

    def _require_disjoint(self, batch: Batch) -> None:
        """Only blocks that are complete before a row begins may be named twice, as the same block."""
        size = self._layout.block_size
        own: dict[int, str] = {}
        shared: dict[int, tuple[int, str]] = {}
        for row in batch.rows:
            who, complete = repr(row.request_id), row.start // size
            orders = [page for order in row.snapshots for page in order.pages]
            for page in [*row.state_table, *orders, *row.block_table[complete:]]:
                self.memory.require_usable(page, who)
                if page in own or page in shared:
                    other = own[page] if page in own else shared[page][1]
                    raise InvariantError(f"{who} and {other} both name page {page}")
                own[page] = who
            for index, page in enumerate(row.block_table[:complete]):
                self.memory.require_usable(page, who)
                other_index, other = shared.setdefault(page, (index, who))
                if page in own or other_index != index:
                    raise InvariantError(f"{who} and {own.get(page, other)} both name page {page}")

    def _run_row(self, row: Row) -> RowResult:
        self.num_rows += 1
        tokens = self._require_right(row)
        end = row.start + len(row.token_ids)
        if row.request_id in self._failing:
            return self._fail(row)
        snapshots = self._write(row, end)
        if not row.samples:
            return RowResult(request_id=row.request_id, snapshots=snapshots)
        tags = self._tags[row.request_id]
        token_id = drawn_token(tags[end], self._vocab_size)
        tokens.append(token_id)
        self._num_drawn[row.request_id] += 1
        tags.append(extend_tag(tags[end], token_id))
        return RowResult(request_id=row.request_id, token_ids=(token_id,), snapshots=snapshots)

    def _require_right(self, row: Row) -> list[int]:
        """The request's tokens, once it is sure that the row and all that it reads are its own."""
        tokens = self._tokens.get(row.request_id)
        if tokens is None:
            raise InvariantError(f"{row.request_id!r} has a row and was not announced")
        end = row.start + len(row.token_ids)
        self._require_right_row(row, tokens, end)
        self._require_right_orders(row, end)
        self._require_right_memory(row)
        return tokens

    def _fail(self, row: Row) -> RowResult:
        self._failing.discard(row.request_id)
        self._ruin(row)
        return RowResult(request_id=row.request_id, error="non-finite logits")

    def _ruin(self, row: Row) -> None:
        """Fill every page that `row` may write with NaN, as far as it is written."""
        who, size = repr(row.request_id), self._layout.block_size
        orders = [page for order in row.snapshots for page in order.pages]
        self.memory.ruin([*row.state_table, *orders], who)
        for index in range(row.start // size, len(row.block_table)):
            self.memory.ruin_block(row.block_table[index], max(0, row.start - index * size), who)

    def _require_right_row(self, row: Row, tokens: list[int], end: int) -> None:
        layout, who = self._layout, repr(row.request_id)
        if not row.token_ids or list(row.token_ids) != tokens[row.start : end]:
            raise InvariantError(f"{who} computes {row.token_ids} at {row.start}, its tokens are {tokens}")
        if row.samples != (end == len(tokens)):
            raise InvariantError(f"{who} computes {end} of {len(tokens)} tokens, samples is {row.samples}")
        if row.num_output_tokens != self._num_drawn[row.request_id]:
            raise InvariantError(
                f"{who} has drawn {self._num_drawn[row.request_id]}, not {row.num_output_tokens}"
            )
        if len(row.block_table) < layout.blocks_for(end) or len(row.state_table) != layout.pages_per_state:
            raise InvariantError(
                f"{who} has {len(row.block_table)} blocks and {len(row.state_table)} state pages "
                f"for {end} tokens"
            )

    def _require_right_orders(self, row: Row, end: int) -> None:
        who, last = repr(row.request_id), row.start
        for order in row.snapshots:
            if not last < order.position <= end:
                raise InvariantError(
                    f"{who} is to leave a snapshot at {order.position}, which must be above {last} and at "
                    f"most {end}"
                )
            if len(order.pages) != self._layout.pages_per_state:
                raise InvariantError(f"{who} is to leave a snapshot on {len(order.pages)} pages")
            last = order.position

    def _require_right_memory(self, row: Row) -> None:
        """KV of positions 0 .. start-1 and the state after `start` tokens must be the request's own."""
        tags, size, who = self._tags[row.request_id], self._layout.block_size, repr(row.request_id)
        for first in range(0, row.start, size):
            page, end = row.block_table[first // size], min(first + size, row.start)
            block = self.memory.pages[page]
            held = block[: end - first] if isinstance(block, list) else []
            wanted = tags[first + 1 : end + 1]
            if held != wanted:
                same = [mine == other for mine, other in zip(wanted, held, strict=False)]
                position = first + ([*same, False].index(False))
                raise InvariantError(f"{who} reads foreign KV at position {position}")
        if row.start:
            for logical, page in enumerate(row.state_table):
                held_state = self.memory.pages[page]
                if held_state != StateTag(tags[row.start], row.start, logical):
                    raise InvariantError(
                        f"{who} reads a state that is not its own: {held_state} for {row.start} tokens"
                    )

    def _write(self, row: Row, end: int) -> tuple[int, ...]:
        """Write KV, snapshots and state; returns the positions of the snapshots that are finite."""
        tags, size, who = self._tags[row.request_id], self._layout.block_size, repr(row.request_id)
        for position in range(row.start, end):
            page = row.block_table[position // size]
            self.memory.write_slot(page, position % size, tags[position + 1], who)
        finite = []
        for order in row.snapshots:
            if row.request_id in self._failing_snapshots:
                self._failing_snapshots.discard(row.request_id)
                self.memory.ruin(order.pages, who)
            else:
                self.memory.write_state(order.pages, tags[order.position], order.position, who)
                finite.append(order.position)
        self.memory.write_state(row.state_table, tags[end], end, who)
        return tuple(finite)
