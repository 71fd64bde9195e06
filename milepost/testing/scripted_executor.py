"""An executor that answers from a script: for tests of fronts, servers and the scheduler itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from milepost.errors import ExecutionError, InvariantError
from milepost.types import Batch, BatchResult, Row, RowResult, SamplingParams, TokenLogprobs

__all__ = ["ScriptedExecutor"]

Script = Mapping[str, Sequence[int]] | Callable[[str, int], int]


class ScriptedExecutor:
    """Draws the tokens that a script says, computes nothing, and remembers what it was sent.

        executor = ScriptedExecutor({"a": [5, 6, 7]})            # request "a" draws 5, 6, 7
        executor = ScriptedExecutor(lambda request_id, n: n % 9)  # the n-th drawn token, n from 0
        executor.fail_request("a", "non-finite logits")           # a's next row fails
        executor.crash(RuntimeError("device lost"))               # the next step raises

    A request with ``logprobs`` gets log-probability 0 for the scripted token, which is certain here.
    A script that is too short for its request, or has no entry for it, raises `ExecutionError`.

    Attributes:
        batches: every batch that was run, in order.
        known: requests announced and not released, with their sampling parameters.
        closed: times that `close` was called.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._row_errors: dict[str, str] = {}
        self._crash: BaseException | None = None
        self.batches: list[Batch] = []
        self.known: dict[str, SamplingParams] = {}
        self.closed = 0

    def fail_request(self, request_id: str, error: str) -> None:
        """Let the next row of `request_id` fail with `error`."""
        self._row_errors[request_id] = error

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
        for request in batch.new_requests:
            self.known[request.request_id] = request.sampling
        if len({row.request_id for row in batch.rows}) != len(batch.rows):
            raise InvariantError(f"step {batch.step} has more than one row of the same request")
        return BatchResult(step=batch.step, rows=tuple(self._answer(row) for row in batch.rows))

    def close(self) -> None:
        """Count the call; nothing is held."""
        self.closed += 1

    def _answer(self, row: Row) -> RowResult:
        sampling = self.known[row.request_id]
        error = self._row_errors.pop(row.request_id, None)
        if error is not None:
            return RowResult(request_id=row.request_id, error=error)
        if not row.samples:
            return RowResult(request_id=row.request_id)
        token_id = self._draw(row)
        logprobs: tuple[TokenLogprobs, ...] = ()
        if sampling.logprobs is not None:
            top = ((token_id, 0.0),) if sampling.logprobs else ()
            logprobs = (TokenLogprobs(token_id=token_id, logprob=0.0, top=top),)
        return RowResult(request_id=row.request_id, token_ids=(token_id,), logprobs=logprobs)

    def _draw(self, row: Row) -> int:
        if callable(self._script):
            return self._script(row.request_id, row.num_output_tokens)
        try:
            return self._script[row.request_id][row.num_output_tokens]
        except LookupError:
            raise ExecutionError(
                f"the script has no token {row.num_output_tokens} for request {row.request_id!r}"
            ) from None
