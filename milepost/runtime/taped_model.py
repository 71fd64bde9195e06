"""Steps that were computed once already, played again without Python between their kernels.

A step in which every row decodes one token runs the same kernels over the same sizes whenever it has as
many rows and as many samples. So the first such step is recorded on a tape, as it is computed, and later
ones are played in one native call. What differs from step to step is read from memory at addresses that
stay: token ids and sample index from buffers of the tape; starts, tables and snapshots through the views
of `milepost.kernels.native.views`, of which the tape has its own that are assigned before every play.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from milepost.kernels.native import native, use_workspace
from milepost.kernels.native.views import kv_view, rows_view, states_view
from milepost.kernels.native.views_only import ViewsOnly
from milepost.kernels.paging import PagedKv, Ragged
from milepost.models.inputs import StepInputs
from milepost.models.outputs import StepOutput
from milepost.runtime.model_runner import StepModel

__all__ = ["MAX_TAPES", "TapedModel"]

MAX_TAPES = 64
"""Tapes kept, the last used: one takes some 0.1 MB, and a batch passes through few sizes while it drains."""


class TapedModel:
    """A model on ``cpu`` kernels whose decode steps are played from tapes.

    A step's output is valid until the next step; states and KV are in their pages as ever. One thread at
    a time may run steps. Steps with longer rows are computed as by the model alone.

    Args:
        model: the model.
        max_tapes: tapes kept.
    """

    def __init__(self, model: StepModel, *, max_tapes: int = MAX_TAPES) -> None:
        self._model = model
        self._max_tapes = max_tapes
        self._workspace = native.Workspace()
        self._tapes: OrderedDict[tuple[int, int, int], _Tape] = OrderedDict()

    @property
    def num_tapes(self) -> int:
        """Tapes recorded and kept."""
        return len(self._tapes)

    def forward(self, inputs: StepInputs) -> StepOutput:
        """Compute a step's tokens; write KV, states and snapshots."""
        rows, samples = inputs.ragged.num_rows, inputs.sample_index.shape[0]
        if inputs.token_ids.shape[0] != rows:
            return self._model.forward(inputs)
        # What a kernel does on one thread and on several may be cut differently.
        key = (rows, samples, native.num_threads())
        tape = self._tapes.get(key)
        if tape is None:
            self._tapes[key] = tape = _Tape(self._model, inputs, self._workspace)
            if len(self._tapes) > self._max_tapes:
                self._tapes.popitem(last=False)
        else:
            self._tapes.move_to_end(key)
            tape.play(inputs)
        return tape.output


@dataclass(frozen=True)
class _Views:
    """The structs that a tape's kernels hold pointers to."""

    rows: native.Rows
    states: native.States
    kv: native.Kv

    shown: list[Callable[[], Tensor | None]] = field(default_factory=list)

    @classmethod
    def blank(cls) -> _Views:
        """Structs that show nothing yet."""
        f32 = native.Float.f32
        return cls(
            rows=native.Rows(0, 0, 0, 0),
            states=native.States(0, 0, f32, 0, 0, 0, 1, 0, 0),
            kv=native.Kv(0, f32, 0, 1, 0, 0, 0, 0, 0),
        )

    def assign(self, inputs: StepInputs) -> None:
        """Let them show a step; valid while its inputs live.

        Steps share buffers for as long as these don't grow, so most show the very tensors of the step
        before: nothing is looked up then, which takes a while after a step has emptied the caches.
        """
        ragged, state, kv = inputs.ragged, inputs.state, inputs.kv
        pages = (state.recurrent, state.conv, state.table, kv.cache, kv.block_table)
        tensors = (ragged.cu_seqlens, ragged.starts, *pages)
        same = len(self.shown) > 0 and all(map(_is_at, tensors, self.shown))
        if same and state.snapshots is None:
            return
        self.shown.clear()
        self.rows.assign(rows_view(ragged))
        self.states.assign(states_view(state))
        self.kv.assign(kv_view(kv))
        if state.snapshots is None:
            self.shown.extend(map(weakref.ref, tensors))  # the arena goes when its owner lets it go


def _is_at(tensor: Tensor, shown: Callable[[], Tensor | None]) -> bool:
    return tensor is shown()


class _Tape:
    """One recorded step of so many rows and samples, and the memory that its calls read and write.

    Args:
        model: the model.
        inputs: of the step that is recorded, which is computed by that.
        workspace: for what the step computes on its way.

    Attributes:
        output: of the step recorded or played last.

    Raises:
        InvariantError: the model computes something that a tape could not play.
    """

    def __init__(self, model: StepModel, inputs: StepInputs, workspace: native.Workspace) -> None:
        self._views = _Views.blank()
        with torch.inference_mode(mode=False):  # tensors that may be written outside of it too
            self._token_ids = torch.empty(inputs.token_ids.shape, dtype=torch.int64)
            self._sample_index = torch.empty(inputs.sample_index.shape, dtype=torch.int64)
        self._tape = native.Tape()
        self._show(inputs)
        own = self._without_numbers(inputs)
        with use_workspace(workspace), _recorded(self._tape), torch.inference_mode(), ViewsOnly():
            output = model.forward(own)
        self.output = StepOutput(_lent(output.logits, workspace), _lent(output.finite, workspace))

    def play(self, inputs: StepInputs) -> None:
        """Compute another step."""
        self._show(inputs)
        self._tape.play()  # `inputs` lives until it returns, and so does the memory that the views show

    def _show(self, inputs: StepInputs) -> None:
        self._token_ids.copy_(inputs.token_ids)
        self._sample_index.copy_(inputs.sample_index)
        self._views.assign(inputs)

    def _without_numbers(self, inputs: StepInputs) -> StepInputs:
        """The step, with what changes from play to play where kernels alone can read it.

        A number that a layer took from a tensor here would be played for ever; so no tensor has any.
        """
        rows, views = inputs.ragged.num_rows, self._views
        ragged = Ragged(torch.arange(rows + 1), _no_numbers(rows), native=views.rows)
        ragged.num_tokens  # noqa: B018 - kept from here on; it is the same in all plays
        table = _no_numbers(*inputs.state.table.shape)
        state = replace(inputs.state, table=table, snapshots=None, native=views.states)
        kv = PagedKv(inputs.kv.cache, _no_numbers(rows, 0), native=views.kv)
        return StepInputs(self._token_ids, ragged, state, kv, self._sample_index)


@contextmanager
def _recorded(tape: native.Tape) -> Iterator[None]:
    tape.start()
    try:
        yield
    finally:
        tape.stop()


def _no_numbers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


def _lent(tensor: Tensor, workspace: native.Workspace) -> Tensor:
    """The same memory. The workspace may use it for other tapes, which are not played while it is read."""
    if tensor.numel() == 0:
        return tensor
    block = workspace.lend(tensor.data_ptr(), tensor.nbytes)
    return torch.frombuffer(block, dtype=tensor.dtype).view(tensor.shape)
