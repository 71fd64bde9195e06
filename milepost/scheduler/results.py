"""The executor's answer to a step, checked before anything acts on it."""

from __future__ import annotations

from collections.abc import Mapping

from milepost.errors import InvariantError
from milepost.types import Batch, BatchResult, RowResult

__all__ = ["outcomes_by_id"]


def outcomes_by_id(batch: Batch, result: BatchResult) -> Mapping[str, RowResult]:
    """The result's rows by request id, once it is sure that they answer exactly the batch's.

    There are none when the step has failed as a whole.

    Raises:
        InvariantError: the executor broke its contract, and how.
    """
    if result.step != batch.step:
        raise InvariantError(f"the executor answered step {result.step}, running is step {batch.step}")
    outcomes = {outcome.request_id: outcome for outcome in result.rows}
    if result.failure is not None:
        if outcomes or not batch.rows:
            raise InvariantError(
                f"step {batch.step} of {len(batch.rows)} rows has failed and answers {len(outcomes)} of them"
            )
        return outcomes
    if len(result.rows) != len(batch.rows) or any(row.request_id not in outcomes for row in batch.rows):
        raise InvariantError(
            f"the executor must answer each of the {len(batch.rows)} rows of step {batch.step} once; "
            f"it answered {sorted(outcome.request_id for outcome in result.rows)}"
        )
    for row in batch.rows:
        outcome = outcomes[row.request_id]
        if outcome.error is None and len(outcome.token_ids) != int(row.samples):
            raise InvariantError(
                f"the executor must draw {int(row.samples)} tokens for {row.request_id!r} in step "
                f"{batch.step}; it drew {len(outcome.token_ids)}"
            )
    return outcomes
