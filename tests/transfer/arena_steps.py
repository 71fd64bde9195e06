"""An inner executor over an arena of small pages: it scrubs, copies, and each row writes its page."""

from __future__ import annotations

from collections.abc import Callable

from milepost.transfer.page_store import PageArray
from milepost.types import Batch, BatchResult, Row, RowResult


def nothing(_: str) -> None:
    """No test looks at this moment."""


class ArenaSteps:
    """`moment` is called before and after the scrubs, and at the end, so that a test can let others run."""

    def __init__(self, arena: PageArray, moment: Callable[[str], None] = nothing) -> None:
        self.arena = arena
        self.moment = moment
        self.batches: list[Batch] = []
        self.closed = 0

    def run(self, batch: Batch) -> BatchResult:
        self.batches.append(batch)
        self.moment("before scrubs")
        for page in batch.scrubs:
            self.arena[page] = 0
        self.moment("after scrubs")
        for source, target in batch.copies:
            self.arena[target] = self.arena[source]
        for row in batch.rows:
            self.arena[row.block_table[0]] = row.token_ids[0]
        self.moment("after rows")
        return BatchResult(
            step=batch.step, rows=tuple(RowResult(request_id=row.request_id) for row in batch.rows)
        )

    def close(self) -> None:
        self.closed += 1


def writing_row(page: int, value: int) -> Row:
    """A row that fills `page` with the byte `value`."""
    return Row(
        request_id=f"r{page}",
        start=0,
        token_ids=(value,),
        block_table=[page],
        state_table=[],
        samples=False,
    )
