"""The executor that computes: a batch through the model, its logits through the sampler."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Protocol

import msgspec
import torch
from torch import Tensor

from milepost.config import ResolvedConfig
from milepost.errors import EngineStoppedError, ExecutionError, InvariantError
from milepost.memory.layout import TiledLayout
from milepost.models.inputs import StepInputs
from milepost.models.outputs import StepOutput
from milepost.runtime.arena import Arena
from milepost.runtime.dtypes import torch_dtype
from milepost.runtime.inputs import InputBuffers, warm_up_inputs
from milepost.runtime.sampler import Sampler
from milepost.runtime.snapshots import written_snapshots
from milepost.types import Batch, BatchResult, Row, RowResult

__all__ = ["ModelRunner", "StepModel"]

logger = logging.getLogger(__name__)

_NO_MEMORY = ("not enough memory", "can't allocate memory")  # of torch's RuntimeError on a CPU


class StepModel(Protocol):
    """What the runner needs of a model; `milepost.models.load_model` gives one."""

    def forward(self, inputs: StepInputs) -> StepOutput:
        """Compute a step's tokens, and record no gradients; write KV, states and snapshots."""
        ...


class ModelRunner:
    """Runs batches on a model; see `milepost.engine.executor.Executor` for the contract.

    A step goes: forget what was released, learn new requests, scrub pages, copy pages, build tensors,
    run the model once over all rows, draw the rows that sample, look at the snapshots. A row fails
    alone, whether it samples or not, when anything that it computed is not finite; then none of its
    snapshots is reported, and neither is any other that is not finite. There are no other tiers here:
    transfers are for an executor around this one.

    An exception while the rows compute, memory that is not there among them, is the result's `failure`,
    once a step on the dummy page has shown that the model can still run. A batch that contradicts itself
    is not: its exception gets out.

    Args:
        model: the model.
        layout: how the arena's pages are cut; the scheduler's own layout.
        num_pages: pages of the arena, the dummy page counted.
        kv_dtype: of cached KV.
        conv_dtype: of the convolution windows, the model's dtype.
        recurrent_dtype: of the recurrent matrices.
        sampler: draws the tokens; None: one without a seed, stop tokens or grammars.
        check_states: also check after each step that the rows' states are finite. It reads every
            state of the batch, so it is for debugging; every row is always checked by its hidden
            states, which show what was written (see `milepost.models.decoder`).

    Raises:
        ConfigError: the system refuses to map the arena.
        InvariantError: a dtype's size is not the one that the layout was built with.
    """

    def __init__(
        self,
        model: StepModel,
        layout: TiledLayout,
        num_pages: int,
        *,
        kv_dtype: torch.dtype = torch.float32,
        conv_dtype: torch.dtype = torch.float32,
        recurrent_dtype: torch.dtype = torch.float32,
        sampler: Sampler | None = None,
        check_states: bool = False,
    ) -> None:
        self._model = model
        arena = Arena(
            layout, num_pages, kv_dtype=kv_dtype, conv_dtype=conv_dtype, recurrent_dtype=recurrent_dtype
        )
        self._inputs: InputBuffers | None = InputBuffers(arena)
        self._sampler = sampler or Sampler()
        self._check_states = check_states

    @classmethod
    def from_config(
        cls,
        model: StepModel,
        layout: TiledLayout,
        config: ResolvedConfig,
        sampler: Sampler | None = None,
    ) -> ModelRunner:
        """Build with the numbers of a resolved config.

        Args:
            model: as of the class.
            layout: the one that `config` was resolved with.
            config: the engine's numbers.
            sampler: draws the tokens; None: one with the config's seed, without stop tokens or grammars.
        """
        return cls(
            model,
            layout,
            config.num_pages,
            kv_dtype=torch_dtype(config.kv_dtype),
            conv_dtype=torch_dtype(config.dtype),
            recurrent_dtype=torch_dtype(config.recurrent_dtype),
            sampler=sampler or Sampler(config.seed),
            check_states=config.check_states,
        )

    @property
    def arena(self) -> Arena:
        """The pages.

        Raises:
            EngineStoppedError: the runner is closed.
        """
        return self._open_inputs().arena

    def run(self, batch: Batch) -> BatchResult:
        """Run one step.

        Raises:
            EngineStoppedError: the runner is closed.
            InvariantError: the batch contradicts itself or the steps before, or wants transfers.
        """
        arena = self.arena
        if batch.transfers or batch.waits:
            raise InvariantError(
                f"Step {batch.step} has {len(batch.transfers)} transfers (waits: {batch.waits}), and a model "
                "runner has the arena only. Put an executor with tiers around it, or cache in no other tier."
            )
        self._sampler.forget(batch.released)
        self._sampler.learn(batch.new_requests)
        arena.scrub(batch.scrubs)
        arena.scrub_tails(batch.tail_scrubs)
        arena.copy_pages(batch.copies)
        if not batch.rows:
            return BatchResult(step=batch.step, rows=())
        try:
            return BatchResult(step=batch.step, rows=tuple(self._compute(batch.rows)))
        except InvariantError:
            raise
        except Exception as error:
            logger.exception("The %d rows of step %d could not be computed", len(batch.rows), batch.step)
            failure = _failure_sentence(error)
        self._recover()
        return BatchResult(step=batch.step, rows=(), failure=failure)

    def warm_up(self) -> None:
        """Run steps on the dummy page, so that no request waits for what is done only once.

        Threads start, memory is touched for the first time, and the step of one decoding row is recorded
        where the model plays steps from tapes.

        Raises:
            EngineStoppedError: the runner is closed.
        """
        for inputs in warm_up_inputs(self.arena):
            self._model.forward(inputs)

    def close(self) -> None:
        """Give the arena's memory back. Safe to call twice."""
        self._inputs = None

    def _compute(self, rows: Sequence[Row]) -> Sequence[RowResult]:
        inputs = self._open_inputs().fill(rows)
        output = self._forward(inputs)
        errors = self._broken_rows(rows, inputs, output.finite)
        snapshots = None
        if errors is not None or inputs.state.snapshots is not None:
            snapshots = written_snapshots(rows, inputs.state.snapshots, self.arena)
        # At last: what is drawn is counted, so nothing may fail behind it.
        drawn = self._draw(rows, output.logits)
        return drawn if snapshots is None else _joined(rows, errors, drawn, snapshots)

    def _forward(self, inputs: StepInputs) -> StepOutput:
        try:
            return self._model.forward(inputs)
        except InvariantError as error:
            # A kernel's check: unlike one of a batch, it leaves no doubt about whose pages are whose.
            raise ExecutionError(str(error)) from error

    def _recover(self) -> None:
        """Begin anew after an exception, and show that the model can run."""
        self._inputs = InputBuffers(self.arena)
        self.warm_up()

    def _open_inputs(self) -> InputBuffers:
        if self._inputs is None:
            raise EngineStoppedError("The model runner is closed; start a new engine.")
        return self._inputs

    def _draw(self, rows: Sequence[Row], logits: Tensor) -> list[RowResult]:
        """Each row's draw; without a token for a row that does not sample."""
        sampling = [row for row in rows if row.samples]
        if logits.ndim != 2 or logits.shape[0] != len(sampling):
            raise InvariantError(
                f"The model must return logits for {len(sampling)} rows. Given: shape {tuple(logits.shape)}."
            )
        drawn = self._sampler.draw(sampling, logits)
        if len(sampling) == len(rows):
            return drawn
        results = iter(drawn)
        return [next(results) if row.samples else RowResult(request_id=row.request_id) for row in rows]

    def _broken_rows(
        self, rows: Sequence[Row], inputs: StepInputs, finite: Tensor
    ) -> list[str | None] | None:
        """Why each row's state and KV can't be relied on, None for those that can; None if all can."""
        if finite.shape != (len(rows),):
            raise InvariantError(
                f"The model must say of {len(rows)} rows whether they are finite. "
                f"Given: shape {tuple(finite.shape)}."
            )
        checked: dict[str, list[bool]] = {"The model's hidden states are": finite.tolist()}
        if self._check_states:
            checked["The recurrent state is"] = self.arena.finite_states(inputs.state).tolist()
        if all(map(all, checked.values())):
            return None
        errors: list[str | None] = [None] * len(rows)
        for what, good in checked.items():
            for index, is_finite in enumerate(good):
                if not is_finite:
                    errors[index] = _not_finite(rows[index], what)
        return errors


def _joined(
    rows: Sequence[Row],
    errors: list[str | None] | None,
    drawn: Sequence[RowResult],
    snapshots: Sequence[Sequence[int]],
) -> list[RowResult]:
    """The rows' draws with what went wrong with them and what they left behind."""
    errors = errors or [None] * len(rows)
    return [_result(*parts) for parts in zip(rows, errors, drawn, snapshots, strict=True)]


def _result(row: Row, error: str | None, result: RowResult, snapshots: Sequence[int]) -> RowResult:
    if error is not None:
        return RowResult(request_id=row.request_id, error=error)
    if result.error is not None or not snapshots:
        return result
    return msgspec.structs.replace(result, snapshots=tuple(snapshots))


def _failure_sentence(error: Exception) -> str:
    """Why rows could not be computed, for users: what an exception says is for the log alone."""
    no_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if no_memory or any(words in str(error) for words in _NO_MEMORY):
        return (
            "The machine has too little memory to compute this request, so it ends. Shorten the prompt, or "
            "start the engine with fewer tokens a step."
        )
    return (
        f"The request could not be computed ({type(error).__name__}), so it ends. The server's log says more."
    )


def _not_finite(row: Row, what: str) -> str:
    return (
        f"{what} not finite after {row.start + len(row.token_ids)} tokens, so the request can't go on and "
        "ends. Check the checkpoint's weights, or use a wider dtype."
    )
