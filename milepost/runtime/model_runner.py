"""The executor that computes: a batch through the model, its logits through the sampler."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from milepost.config import ResolvedConfig
from milepost.errors import EngineStoppedError, InvariantError
from milepost.memory.layout import TiledLayout
from milepost.models.inputs import StepInputs
from milepost.runtime.arena import Arena
from milepost.runtime.dtypes import torch_dtype
from milepost.runtime.inputs import step_inputs, warm_up_inputs
from milepost.runtime.sampler import Sampler
from milepost.types import Batch, BatchResult, Row, RowResult

__all__ = ["ModelRunner", "StepModel"]


class StepModel(Protocol):
    """What the runner needs of a model; `milepost.models.load_model` gives one."""

    def forward(self, inputs: StepInputs) -> Tensor:
        """Compute a step's tokens, write KV and states, return logits [samples, vocab]."""
        ...


class ModelRunner:
    """Runs batches on a model; see `milepost.engine.executor.Executor` for the contract.

    A step goes: forget what was released, learn new requests, scrub pages, build tensors, run the
    model once over all rows, draw the rows that sample.

    Args:
        model: the model.
        layout: how the arena's pages are cut; the scheduler's own layout.
        num_pages: pages of the arena, the dummy page counted.
        kv_dtype: of cached KV.
        conv_dtype: of the convolution windows, the model's dtype.
        recurrent_dtype: of the recurrent matrices.
        seed: the engine's seed; see `Sampler`.
        check_states: also check after each step that the rows' states are finite. It reads every
            state of the batch, so it is for debugging; rows that sample are always checked by
            their logits.

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
        seed: int | None = None,
        check_states: bool = False,
    ) -> None:
        self._model = model
        self._arena: Arena | None = Arena(
            layout, num_pages, kv_dtype=kv_dtype, conv_dtype=conv_dtype, recurrent_dtype=recurrent_dtype
        )
        self._sampler = Sampler(seed)
        self._check_states = check_states

    @classmethod
    def from_config(cls, model: StepModel, layout: TiledLayout, config: ResolvedConfig) -> ModelRunner:
        """Build with the numbers of a resolved config; `layout` is the one it was resolved with."""
        return cls(
            model,
            layout,
            config.num_pages,
            kv_dtype=torch_dtype(config.kv_dtype),
            conv_dtype=torch_dtype(config.dtype),
            recurrent_dtype=torch_dtype(config.recurrent_dtype),
            seed=config.seed,
            check_states=config.check_states,
        )

    @property
    def arena(self) -> Arena:
        """The pages.

        Raises:
            EngineStoppedError: the runner is closed.
        """
        if self._arena is None:
            raise EngineStoppedError("The model runner is closed; start a new engine.")
        return self._arena

    def run(self, batch: Batch) -> BatchResult:
        """Run one step.

        Raises:
            EngineStoppedError: the runner is closed.
            InvariantError: the batch contradicts itself or the steps before.
        """
        arena = self.arena
        self._sampler.forget(batch.released)
        self._sampler.learn(batch.new_requests)
        arena.scrub(batch.scrubs)
        if not batch.rows:
            return BatchResult(step=batch.step, rows=())
        with torch.inference_mode():
            inputs = step_inputs(batch.rows, arena)
            logits = self._model.forward(inputs)
            failed = self._rows_with_broken_states(batch, inputs)
            results = self._draw(batch, logits, failed)
        return BatchResult(step=batch.step, rows=results)

    def warm_up(self) -> None:
        """Run a step on the dummy page, so that kernels are compiled before the first request waits for them.

        Raises:
            EngineStoppedError: the runner is closed.
        """
        with torch.inference_mode():
            self._model.forward(warm_up_inputs(self.arena))

    def close(self) -> None:
        """Give the arena's memory back. Safe to call twice."""
        self._arena = None

    def _draw(self, batch: Batch, logits: Tensor, failed: dict[str, RowResult]) -> tuple[RowResult, ...]:
        sampling = [row for row in batch.rows if row.samples]
        if logits.ndim != 2 or logits.shape[0] != len(sampling):
            raise InvariantError(
                f"The model must return logits for {len(sampling)} rows. Given: shape {tuple(logits.shape)}."
            )
        results = {result.request_id: result for result in self._sampler.draw(sampling, logits)} | failed
        # A row that does not sample has nothing to tell unless it failed.
        return tuple(
            results.get(row.request_id) or RowResult(request_id=row.request_id) for row in batch.rows
        )

    def _rows_with_broken_states(self, batch: Batch, inputs: StepInputs) -> dict[str, RowResult]:
        if not self._check_states:
            return {}
        finite = self.arena.finite_states(inputs.state).tolist()
        broken = [row for row, is_finite in zip(batch.rows, finite, strict=True) if not is_finite]
        return {row.request_id: _broken_state(row) for row in broken}


def _broken_state(row: Row) -> RowResult:
    return RowResult(
        request_id=row.request_id,
        error=(
            f"The recurrent state is not finite after {row.start + len(row.token_ids)} tokens, so the "
            "request can't go on and ends. Check the checkpoint's weights, or use a wider dtype."
        ),
    )
