"""An executor that answers from a script: for tests of fronts, servers and the scheduler itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from milepost.errors import ExecutionError, InvariantError
from milepost.types import (
    Batch,
    BatchResult,
    Row,
    RowResult,
    SamplingParams,
    TokenLogprobs,
    Transfer,
    TransferResult,
)

__all__ = ["ScriptedExecutor"]

Script = Mapping[str, Sequence[int]] | Callable[[str, int], int]


class ScriptedExecutor:
    """Draws the tokens that a script says, computes nothing, and remembers what it was sent.

        executor = ScriptedExecutor({"a": [5, 6, 7]})            # request "a" draws 5, 6, 7
        executor = ScriptedExecutor(lambda request_id, n: n % 9)  # the n-th drawn token, n from 0
        executor.fail_request("a", "non-finite logits")           # a's next row fails
        executor.break_steps("a")                                 # no step with a row of a's can be computed
        executor.crash(RuntimeError("device lost"))               # the next step raises
        executor.lose_snapshots("a")                              # a's next row leaves none
        executor.hold_transfers()                                 # they stay on their way from now on
        executor.end_transfers("disk full")                       # they end with the next step, failed

    Snapshots that are ordered are reported as written, and transfers end with their own step, until
    the script says otherwise; copies between pages are nothing to do. What goes from the arena to the
    host always ends with its own step, and a step that waits ends one transfer that is held.

    A request with ``logprobs`` gets log-probability 0 for the scripted token, which is certain here.
    A script that is too short for its request, or has no entry for it, raises `ExecutionError`.

    Attributes:
        batches: every batch that was run, in order.
        known: requests announced and not released, with their sampling parameters.
        closed: times that `close` was called.
        in_flight: transfers that have begun and not ended, in order.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._row_errors: dict[str, str] = {}
        self._breaking: set[str] = set()
        self._crash: BaseException | None = None
        self.batches: list[Batch] = []
        self.known: dict[str, SamplingParams] = {}
        self.closed = 0
        self.in_flight: list[Transfer] = []
        self._losing: set[str] = set()
        self._holds = False
        self._transfer_error: str | None = None

    def fail_request(self, request_id: str, error: str) -> None:
        """Let the next row of `request_id` fail with `error`."""
        self._row_errors[request_id] = error

    def break_steps(self, request_id: str) -> None:
        """Let every step with a row of `request_id` fail as a whole, until the request is released."""
        self._breaking.add(request_id)

    def lose_snapshots(self, request_id: str) -> None:
        """Let the next row of `request_id` that shall leave snapshots leave none."""
        self._losing.add(request_id)

    def hold_transfers(self) -> None:
        """Let transfers in the background go on until `end_transfers`."""
        self._holds = True

    def end_transfers(self, error: str | None = None) -> None:
        """Let all transfers end with the next step, with `error` if it is given; hold none any more."""
        self._holds = False
        self._transfer_error = error

    def crash(self, error: BaseException) -> None:
        """Let the next step raise `error`."""
        self._crash = error

    def run(self, batch: Batch) -> BatchResult:
        """Answer every row of `batch` from the script."""
        self.batches.append(batch)
        if self._crash is not None:
            error, self._crash = self._crash, None
            raise error
        for request_id in batch.released:
            del self.known[request_id]
            self._breaking.discard(request_id)
        for request in batch.new_requests:
            self.known[request.request_id] = request.sampling
        if len({row.request_id for row in batch.rows}) != len(batch.rows):
            raise InvariantError(f"step {batch.step} has more than one row of the same request")
        transfers = self._transfer(batch)
        if not self._breaking.isdisjoint(row.request_id for row in batch.rows):
            return BatchResult(step=batch.step, rows=(), transfers=transfers, failure="the step broke")
        rows = tuple(self._answer(row) for row in batch.rows)
        return BatchResult(step=batch.step, rows=rows, transfers=transfers)

    def close(self) -> None:
        """Count the call; nothing is held."""
        self.closed += 1

    def _transfer(self, batch: Batch) -> tuple[TransferResult, ...]:
        self.in_flight += batch.transfers
        ended = [one for one in self.in_flight if not self._holds or one.is_immediate]
        if batch.waits and not ended:
            if not self.in_flight:
                raise InvariantError(f"step {batch.step} waits for a transfer and none is on its way")
            ended = self.in_flight[:1]
        self.in_flight = [one for one in self.in_flight if one not in ended]
        error, self._transfer_error = self._transfer_error, None
        return tuple(TransferResult(transfer_id=one.transfer_id, error=error) for one in ended)

    def _answer(self, row: Row) -> RowResult:
        sampling = self.known[row.request_id]
        error = self._row_errors.pop(row.request_id, None)
        if error is not None:
            return RowResult(request_id=row.request_id, error=error)
        snapshots = tuple(order.position for order in row.snapshots)
        if snapshots and row.request_id in self._losing:
            self._losing.discard(row.request_id)
            snapshots = ()
        if not row.samples:
            return RowResult(request_id=row.request_id, snapshots=snapshots)
        token_id = self._draw(row)
        logprobs: tuple[TokenLogprobs, ...] = ()
        if sampling.logprobs is not None:
            top = ((token_id, 0.0),) if sampling.logprobs else ()
            logprobs = (TokenLogprobs(token_id=token_id, logprob=0.0, top=top),)
        return RowResult(
            request_id=row.request_id, token_ids=(token_id,), snapshots=snapshots, logprobs=logprobs
        )

    def _draw(self, row: Row) -> int:
        if callable(self._script):
            return self._script(row.request_id, row.num_output_tokens)
        try:
            return self._script[row.request_id][row.num_output_tokens]
        except LookupError:
            raise ExecutionError(
                f"the script has no token {row.num_output_tokens} for request {row.request_id!r}"
            ) from None
