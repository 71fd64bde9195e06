"""What a form's reader brings forth, before requests are put in order and stretched in time."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.errors import TraceError
from milepost.sim.traces.block_tokens import BlockTokens, runs_of
from milepost.sim.traces.trace import TraceRequest

__all__ = ["BlockNumbers", "Draft", "lacks_last"]


class Draft:
    """Requests as they are read.

    Args:
        block_size: tokens that the form tells apart.
        has_content: whether it says which tokens are equal.
        in_order: whether the file is expected to hold requests by arrival.

    Attributes:
        requests: in the file's order; arrivals in seconds from any moment.
        notes: what a user of the results must know.
        num_empty: requests without output, which count as one token.
    """

    def __init__(self, block_size: int, *, has_content: bool = True, in_order: bool = True) -> None:
        self.block_size = block_size
        self.has_content = has_content
        self.in_order = in_order
        self.requests: list[TraceRequest] = []
        self.notes: list[str] = []
        self.num_empty = 0
        self._turns: dict[str, int] = {}

    def drawn(self, num_output: int) -> int:
        """Tokens that a request draws: at least one, as whoever serves it draws one."""
        self.num_empty += num_output == 0
        return max(1, num_output)

    def next_turn(self, session: str) -> int:
        """Number of the session's next request, from 0."""
        if not session:
            return 0
        turn = self._turns.get(session, -1) + 1
        self._turns[session] = turn
        return turn


class BlockNumbers:
    """Numbers ids anew, from 0, in the order of first sight.

    So those of a prompt's new blocks follow each other, and the prompt is a few runs.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._count = 0

    def prompt(self, ids: Sequence[int], num_tokens: int, block_size: int) -> BlockTokens:
        """A prompt of the blocks `ids`; a last, partly filled block may lack one.

        Raises:
            TraceError: too few or too many ids; then nothing is numbered.
        """
        lacking = lacks_last(len(ids), num_tokens, block_size)
        numbers = []
        for block_id in ids:
            number = self._numbers.get(block_id)
            if number is None:
                number = self._numbers[block_id] = self._new()
            numbers.append(number)
        if lacking:
            numbers.append(self._new())
        return BlockTokens(runs_of(numbers), num_tokens, block_size)

    def _new(self) -> int:
        self._count += 1
        return self._count - 1


def lacks_last(num_ids: int, num_tokens: int, block_size: int) -> bool:
    """Whether a prompt's last block, which is only partly filled, has no id.

    Raises:
        TraceError: too few or too many ids for so many tokens.
    """
    need = -(-num_tokens // block_size)
    if num_ids == need:
        return False
    if num_ids == need - 1 and num_tokens % block_size:
        return True
    raise TraceError(
        f"{num_tokens:,} tokens are {need:,} blocks of {block_size}, of which only a partly filled last one "
        f"may lack an id. Given: {num_ids:,} ids."
    )
