"""The executor of the simulator: it computes nothing and says how long it would have taken."""

from __future__ import annotations

from milepost.sim.cost.step_work import CostModel, step_seconds, work_of
from milepost.types import Batch, BatchResult, Row, RowResult

__all__ = ["SimulatedExecutor"]

_UNKNOWN = (0,)


class SimulatedExecutor:
    """Draws the recorded output, where the trace has it, and writes every snapshot that is asked for.

    Args:
        cost: tells how long a step takes; None to take no time.

    Attributes:
        seconds: that the last step would have taken.
    """

    def __init__(self, cost: CostModel | None) -> None:
        self._cost = cost
        self._outputs: dict[str, tuple[int, ...]] = {}
        self.seconds = 0.0

    def expect(self, request_id: str, output_ids: tuple[int, ...]) -> None:
        """Draw `output_ids` for this request; forgotten with it."""
        self._outputs[request_id] = output_ids

    def run(self, batch: Batch) -> BatchResult:
        """Answer a step at once."""
        for request_id in batch.released:
            self._outputs.pop(request_id, None)
        self.seconds = (
            0.0 if self._cost is None or not batch.rows else step_seconds(self._cost, work_of(batch))
        )
        return BatchResult(step=batch.step, rows=tuple(self._answer(row) for row in batch.rows))

    def close(self) -> None:
        """Nothing is held."""

    def _answer(self, row: Row) -> RowResult:
        drawn: tuple[int, ...] = ()
        if row.samples:
            known = self._outputs.get(row.request_id)
            drawn = known[row.num_output_tokens : row.num_output_tokens + 1] if known else _UNKNOWN
        return RowResult(
            request_id=row.request_id,
            token_ids=drawn,
            snapshots=tuple(order.position for order in row.snapshots),
        )
