"""An oracle without a model: an executor whose memory remembers what it stands for.

In place of numbers, every KV slot and every page of a state holds a *tag*, a hash of all tokens up
to its position. A row is only run when the pages that it names carry exactly the tags of its own
request's tokens, so a wrong page, a lost step, a state that is one token off or one that belongs to
somebody else stops the test at once. The tokens that it draws are a pure function of all tokens
before them, so the output of a request is known beforehand, however it is scheduled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from milepost.errors import InvariantError
from milepost.memory.layout import DUMMY_PAGE, Layout
from milepost.types import Batch, BatchResult, NewRequest, Row, RowResult

__all__ = ["TagExecutor", "drawn_token", "expected_output", "extend_tag", "tag_of"]

_MASK = (1 << 64) - 1
_EMPTY = 0x243F6A8885A308D3  # the tag of no tokens; any constant does (these are digits of pi)
_POISON = "poison"
_NAN = "nan"

Page = str | list[int | None] | tuple[int, int]
"""Poison, NaN of a failed request, a block's tags by slot, or a state's (tag, logical page)."""


def extend_tag(tag: int, token_id: int) -> int:
    """The tag of a sequence that had `tag` before `token_id` came (a splitmix64 step)."""
    mixed = (tag + (token_id + 1) * 0x9E3779B97F4A7C15) & _MASK
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
    return mixed ^ (mixed >> 31)


def tag_of(token_ids: Iterable[int]) -> int:
    """The tag of exactly these tokens."""
    tag = _EMPTY
    for token_id in token_ids:
        tag = extend_tag(tag, token_id)
    return tag


def drawn_token(tag: int, vocab_size: int) -> int:
    """The token that follows the tokens of `tag`."""
    return (tag >> 32) % vocab_size


def expected_output(prompt: Sequence[int], count: int, vocab_size: int) -> list[int]:
    """The first `count` tokens that a request with this prompt draws, whatever else goes on."""
    tag, output = tag_of(prompt), []
    for _ in range(count):
        output.append(drawn_token(tag, vocab_size))
        tag = extend_tag(tag, output[-1])
    return output


class TagExecutor:
    """Runs batches on tags and raises `InvariantError` at the first thing that is not right.

    Args:
        layout: how sequences lie in pages; blocks of one page each.
        num_pages: pages of the memory, the dummy page included.
        vocab_size: drawn tokens are below it; small ones make tokens repeat, which finds more.
        free_pages: tells which pages nobody owns (`PagePool.free_pages`). They are poisoned before
            each step, and a row that names one of them is an error; without it, neither is done.

    Attributes:
        num_rows: rows run so far.
    """

    def __init__(
        self,
        layout: Layout,
        num_pages: int,
        *,
        vocab_size: int = 2,
        free_pages: Callable[[], Iterable[int]] | None = None,
    ) -> None:
        if layout.pages_per_block != 1:
            raise InvariantError(f"TagExecutor wants blocks of one page, not {layout.pages_per_block}")
        self._layout = layout
        self._vocab_size = vocab_size
        self._free_pages = free_pages
        self._memory: list[Page] = [_POISON] * num_pages
        self._tokens: dict[str, list[int]] = {}
        # Per request, the tag of each prefix, by its length.
        self._tags: dict[str, list[int]] = {}
        self._num_drawn: dict[str, int] = {}
        self._failing: set[str] = set()
        self.num_rows = 0

    def fail_request(self, request_id: str) -> None:
        """Let the next row of `request_id` fail, and fill every page that it may write with NaN."""
        self._failing.add(request_id)

    def run(self, batch: Batch) -> BatchResult:
        """Forget, learn, scrub and run the rows, each only if all that it reads is right."""
        for request_id in batch.released:
            if self._tokens.pop(request_id, None) is None:
                raise InvariantError(f"{request_id!r} is released and was not known")
            del self._tags[request_id], self._num_drawn[request_id]
            self._failing.discard(request_id)
        for request in batch.new_requests:
            self._learn(request)
        free = frozenset(self._free_pages()) if self._free_pages is not None else frozenset()
        self._poison(free, batch.scrubs)
        self._require_disjoint(batch, free)
        # An executor may answer in any order; answering backwards finds who relies on places.
        return BatchResult(step=batch.step, rows=tuple(self._run_row(row) for row in reversed(batch.rows)))

    def close(self) -> None:
        """Nothing is held."""

    def _learn(self, request: NewRequest) -> None:
        if request.request_id in self._tokens:
            raise InvariantError(f"{request.request_id!r} is announced twice")
        tags = [_EMPTY]
        for token_id in request.prompt_token_ids:
            tags.append(extend_tag(tags[-1], token_id))
        self._tokens[request.request_id] = list(request.prompt_token_ids)
        self._tags[request.request_id] = tags
        self._num_drawn[request.request_id] = 0

    def _poison(self, free: frozenset[int], scrubs: Iterable[int]) -> None:
        for page in free:
            # What a failed request left stays dangerous until it is scrubbed.
            if self._memory[page] != _NAN:
                self._memory[page] = _POISON
        for page in scrubs:
            if page == DUMMY_PAGE:
                raise InvariantError("the dummy page is scrubbed")
            self._memory[page] = _POISON

    def _require_disjoint(self, batch: Batch, free: frozenset[int]) -> None:
        user: dict[int, str] = {}
        for row in batch.rows:
            for page in [*row.state_table, *row.block_table]:
                if not DUMMY_PAGE < page < len(self._memory):
                    raise InvariantError(f"{row.request_id!r} names page {page}")
                if page in user:
                    raise InvariantError(f"{row.request_id!r} and {user[page]!r} both name page {page}")
                if page in free:
                    raise InvariantError(f"{row.request_id!r} names page {page}, which is free")
                if self._memory[page] == _NAN:
                    raise InvariantError(f"{row.request_id!r} got page {page}, which was never scrubbed")
                user[page] = row.request_id

    def _run_row(self, row: Row) -> RowResult:
        self.num_rows += 1
        tokens = self._tokens.get(row.request_id)
        if tokens is None:
            raise InvariantError(f"{row.request_id!r} has a row and was not announced")
        end = row.start + len(row.token_ids)
        self._require_right_row(row, tokens, end)
        self._require_right_memory(row)
        if row.request_id in self._failing:
            self._failing.discard(row.request_id)
            for page in [*row.state_table, *row.block_table]:
                self._memory[page] = _NAN
            return RowResult(request_id=row.request_id, error="non-finite logits")
        self._write(row, end)
        if not row.samples:
            return RowResult(request_id=row.request_id)
        tags = self._tags[row.request_id]
        token_id = drawn_token(tags[end], self._vocab_size)
        tokens.append(token_id)
        self._num_drawn[row.request_id] += 1
        tags.append(extend_tag(tags[end], token_id))
        return RowResult(request_id=row.request_id, token_ids=(token_id,))

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

    def _require_right_memory(self, row: Row) -> None:
        """KV of positions 0 .. start-1 and the state after `start` tokens must be the request's own."""
        tags, size = self._tags[row.request_id], self._layout.block_size
        for position in range(row.start):
            block = self._memory[row.block_table[position // size]]
            if not isinstance(block, list) or block[position % size] != tags[position + 1]:
                raise InvariantError(f"{row.request_id!r} reads foreign KV at position {position}")
        if row.start:
            for logical, page in enumerate(row.state_table):
                if self._memory[page] != (tags[row.start], logical):
                    raise InvariantError(f"{row.request_id!r} reads a state that is not its own")

    def _write(self, row: Row, end: int) -> None:
        tags, size = self._tags[row.request_id], self._layout.block_size
        for position in range(row.start, end):
            page = row.block_table[position // size]
            block = self._memory[page]
            if not isinstance(block, list):
                block = self._memory[page] = [None] * size
            block[position % size] = tags[position + 1]
        for logical, page in enumerate(row.state_table):
            self._memory[page] = (tags[end], logical)
