"""The one join between the half that decides and the half that computes."""

from __future__ import annotations

from typing import Protocol

from milepost.types import Batch, BatchResult

__all__ = ["Executor"]


class Executor(Protocol):
    """Whatever runs a `Batch`: the model runner, the simulator's cost model, a scripted fake.

    An executor never decides: it scrubs, computes and draws what the batch says, in the batch's
    order, and keeps per-request knowledge (sampling state) only between `new_requests` and
    `released`.
    """

    def run(self, batch: Batch) -> BatchResult:
        """Run one step and return one `RowResult` per row.

        A failure of a single request (non-finite logits) is an `error` in its row. An exception while
        rows were computed is the result's `failure`, if the executor can go on: whose fault it was is
        found out by running the rows one by one. An exception that gets out means that the whole
        executor failed and no result of the step may be used.
        """
        ...

    def close(self) -> None:
        """Give back what the executor holds; it runs nothing afterwards. Safe to call twice."""
        ...
