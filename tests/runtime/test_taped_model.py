"""Steps played from tapes are the steps computed one op at a time, to the last bit."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Literal

import pytest
import torch

from milepost.errors import InvariantError
from milepost.kernels.native import native, use_workspace
from milepost.kernels.native.views_only import ViewsOnly
from milepost.kernels.ops import load_ops
from milepost.kernels.paging import PagedKv, Ragged, StateSnapshots
from milepost.models import Model, StepInputs, StepOutput, load_model
from milepost.runtime.arena import Arena
from milepost.runtime.inputs import warm_up_inputs
from milepost.runtime.model_runner import ModelRunner
from milepost.runtime.taped_model import TapedModel
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.models.paged_batches import layout_of

Family = Literal["kimi_k3", "kimi_linear"]
NUM_PAGES = 600
BLOCK_SIZE = 8


@pytest.fixture(scope="module", params=["kimi_k3", "kimi_linear"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    """A toy model on compiled kernels."""
    family: Family = request.param
    folder: Path = tmp_path_factory.mktemp(family) / "toy"
    write_toy_checkpoint(folder, family, dtype=torch.float32)
    return load_model(folder, dtype=torch.float32, ops=load_ops("cpu"))


class Running:
    """One sequence: its pages and how far it is."""

    def __init__(self, state: list[int]) -> None:
        self.state = state
        self.blocks: list[int] = []
        self.computed = 0


class Schedule:
    """Random steps over two arenas with the same tables: rows join, leave, grow and leave snapshots."""

    def __init__(self, model: Model, seed: int) -> None:
        self._random = random.Random(seed)
        self._layout = layout_of(model, "paged", BLOCK_SIZE)
        self.arenas = [self._arena(), self._arena()]
        self._free = list(range(1, NUM_PAGES))
        self._random.shuffle(self._free)
        self._running: list[Running] = []

    def _arena(self) -> Arena:
        arena = Arena(
            self._layout,
            NUM_PAGES,
            kv_dtype=torch.float32,
            conv_dtype=torch.float32,
            recurrent_dtype=torch.float32,
        )
        arena.poison_all()
        return arena

    def step(self) -> tuple[StepInputs, StepInputs]:
        """The next step's inputs, for each of the arenas."""
        self._leave()
        self._join()
        rows, decodes = list(self._running), self._random.random() < 0.8
        self._random.shuffle(rows)
        counts = [1 if decodes else self._random.choice([1, 2, 11]) for _ in rows]
        return self._inputs(rows, counts)

    def _leave(self) -> None:
        while len(self._running) > 4 or (self._running and self._random.random() < 0.15):
            gone = self._running.pop(self._random.randrange(len(self._running)))
            self._free += gone.state + gone.blocks

    def _join(self) -> None:
        while not self._running or self._random.random() < 0.2:
            self._running.append(Running(self._take(self._layout.pages_per_state)))

    def _take(self, count: int) -> list[int]:
        return [self._free.pop() for _ in range(count)]

    def _inputs(self, rows: Sequence[Running], counts: Sequence[int]) -> tuple[StepInputs, StepInputs]:
        draw, starts = self._random, [row.computed for row in rows]
        for row, count in zip(rows, counts, strict=True):
            row.computed += count
            row.blocks += self._take(self._layout.blocks_for(row.computed) - len(row.blocks))
        width = max(len(row.blocks) for row in rows)
        capacity = width + draw.choice([0, 0, 1, 5])  # a table may be part of a wider one
        blocks = torch.tensor([row.blocks + [0] * (capacity - len(row.blocks)) for row in rows])[:, :width]
        offsets = [0, *accumulate(counts)]
        tokens = [draw.randrange(320) for _ in range(offsets[-1])]
        sampled = [end - 1 for end in offsets[1:] if draw.random() < 0.8]
        snapshots = self._snapshots(offsets)
        first, second = (
            StepInputs(
                token_ids=torch.tensor(tokens),
                ragged=Ragged(torch.tensor(offsets), torch.tensor(starts)),
                state=arena.states(torch.tensor([row.state for row in rows]), snapshots),
                kv=PagedKv(arena.kv, blocks),
                sample_index=torch.tensor(sampled, dtype=torch.int64),
            )
            for arena in self.arenas
        )
        return first, second

    def _snapshots(self, offsets: Sequence[int]) -> StateSnapshots | None:
        rows = [row for row in range(len(offsets) - 1) if self._random.random() < 0.2]
        if not rows:
            return None
        ends = [self._random.randint(offsets[row] + 1, offsets[row + 1]) for row in rows]
        pages = [self._take(self._layout.pages_per_state) for _ in rows]
        self._free[:0] = [page for table in pages for page in table]  # dropped again, used much later
        return StateSnapshots(torch.tensor(rows), torch.tensor(ends), torch.tensor(pages))


def same(got: StepOutput, want: StepOutput) -> bool:
    """Bit for bit."""
    return torch.equal(got.logits, want.logits) and torch.equal(got.finite, want.finite)


def test_any_schedule_is_the_same_to_the_last_bit(model: Model) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - pytest shows it with a failure
    schedule, taped = Schedule(model, seed), TapedModel(model, max_tapes=6)
    eager_arena, taped_arena = schedule.arenas
    for step in range(80):
        eager_inputs, taped_inputs = schedule.step()
        got = taped.forward(taped_inputs)
        assert same(got, model.forward(eager_inputs)), f"step {step} of seed {seed}"
        assert torch.equal(taped_arena.bytes, eager_arena.bytes), f"step {step} of seed {seed}"
        assert taped.num_tapes <= 6
    assert taped.num_tapes


def decode(model: Model, seed: int) -> StepInputs:
    """A step in which every row decodes a token, and leaves none of it to a snapshot."""
    schedule = Schedule(model, seed)
    while True:
        inputs, _ = schedule.step()
        model.forward(inputs)
        again = replace(inputs.state, snapshots=None, native=None)
        if inputs.ragged.num_rows == inputs.token_ids.shape[0]:
            return replace(inputs, state=again)


def test_a_row_that_is_not_finite_says_so_on_tape(model: Model) -> None:
    inputs, taped = decode(model, 1), TapedModel(model)
    assert taped.forward(inputs).finite.all()
    inputs.token_ids[0] = 10**9  # its embedding is NaN
    assert taped.forward(inputs).finite.tolist() == [False] + [True] * (inputs.ragged.num_rows - 1)
    assert taped.num_tapes == 1


@pytest.mark.parametrize("length", [1, 70])
def test_a_forward_pass_is_native_calls_and_views_alone(model: Model, length: int) -> None:
    arena = Schedule(model, 0).arenas[0]
    pages = torch.arange(1, 1 + arena.layout.pages_per_state)
    snapshots = StateSnapshots(torch.tensor([0]), torch.tensor([1]), pages[None] + len(pages))
    inputs = StepInputs(
        token_ids=torch.arange(length + 1),
        ragged=Ragged(torch.tensor([0, length, length + 1]), torch.tensor([0, 0])),
        state=arena.states(torch.stack([pages + 2 * len(pages), pages + 3 * len(pages)]), snapshots),
        kv=PagedKv(arena.kv, torch.arange(NUM_PAGES - 40, NUM_PAGES).view(2, 20)),
        sample_index=torch.tensor([length]),
    )
    assert (inputs.ragged.num_tokens, snapshots.row_list, snapshots.end_list) == (length + 1, [0], [1])
    with use_workspace(native.Workspace()), torch.inference_mode(), ViewsOnly():
        output = model.forward(inputs)
    assert output.finite.all()


class Computing:
    """A model that does something with torch on its way."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def forward(self, inputs: StepInputs) -> StepOutput:
        """As the model, twice the logits."""
        output = self._model.forward(inputs)
        return StepOutput(output.logits * 2, output.finite)


class Reading:
    """A model that decides by a number which changes from step to step."""

    def __init__(self, model: Model) -> None:
        self._model = model

    def forward(self, inputs: StepInputs) -> StepOutput:
        """As the model, unless all rows are new."""
        assert sum(inputs.ragged.start_list) >= 0
        return self._model.forward(inputs)


@pytest.mark.parametrize("kind", [Computing, Reading])
def test_no_tape_is_made_of_what_it_could_not_play(
    model: Model, kind: type[Computing] | type[Reading]
) -> None:
    taped = TapedModel(kind(model))
    with pytest.raises((InvariantError, NotImplementedError)):
        taped.forward(decode(model, 3))
    assert taped.num_tapes == 0
    assert len(native.Tape()) == 0  # and nothing is left recording: another tape can start
    assert TapedModel(model).forward(decode(model, 4)).finite.all()


def test_a_warm_runner_has_the_tape_of_one_row(model: Model) -> None:
    taped = TapedModel(model)
    ModelRunner(taped, layout_of(model, "paged", BLOCK_SIZE), 40).warm_up()
    assert taped.num_tapes == 1
    arena = Schedule(model, 0).arenas[0]
    for inputs in warm_up_inputs(arena):
        taped.forward(inputs)
    assert taped.num_tapes == 1
