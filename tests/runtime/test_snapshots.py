"""A sequence that resumes from a snapshot says what a cold one says, wherever the snapshot stands."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from milepost.kernels.ops import load_ops
from milepost.models import Model, StepInputs, StepOutput, load_model
from milepost.testing.reference_model import ReferenceModel
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.runtime.snapshot_runs import SnapshotRuns

Family = Literal["kimi_k3", "kimi_linear"]
FAMILIES: tuple[Family, ...] = ("kimi_k3", "kimi_linear")
KINDS = {"reference": torch.float64, "cpu": torch.float32}
LIMITS = {torch.float64: 1e-9, torch.float32: 1e-4}
TOKENS = random.Random(3).choices(range(320), k=141)
POSITIONS = (1, 2, 15, 16, 17, 63, 64, 65, 77, 127, 128, 129, 140)


class Toys:
    """Toy checkpoints of both families, their models and what the float64 reference says."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._references: dict[Family, ReferenceModel] = {}
        self._models: dict[tuple[Family, str], Model] = {}

    def model(self, family: Family, kernels: str) -> Model:
        if (family, kernels) not in self._models:
            self._reference(family)
            ops = load_ops(kernels)
            self._models[family, kernels] = load_model(self._folder / family, dtype=KINDS[kernels], ops=ops)
        return self._models[family, kernels]

    def expected(self, family: Family, tokens: Sequence[int]) -> Tensor:
        """Logits after each token, [tokens, vocab] float64."""
        return self._reference(family).logits(tokens)

    def _reference(self, family: Family) -> ReferenceModel:
        if family not in self._references:
            write_toy_checkpoint(self._folder / family, family, dtype=torch.float32, num_layers=4)
            self._references[family] = ReferenceModel.load(self._folder / family)
        return self._references[family]


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    return Toys(tmp_path_factory.mktemp("toys"))


@pytest.fixture(scope="module")
def cold(toys: Toys) -> Callable[[Family], Tensor]:
    known: dict[Family, Tensor] = {}

    def logits(family: Family) -> Tensor:
        if family not in known:
            known[family] = toys.expected(family, TOKENS)
        return known[family]

    return logits


def assert_same(got: Tensor, want: Tensor) -> None:
    error = (got.double() - want).norm(dim=1) / want.norm(dim=1)
    assert float(error.max()) < LIMITS[got.dtype]


@pytest.mark.parametrize("budget", [1000, 64, 50, 9])
@pytest.mark.parametrize("kernels", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_resumed_equals_cold(
    toys: Toys, cold: Callable[[Family], Tensor], family: Family, kernels: str, budget: int
) -> None:
    """R27, R34, R35, R37: state, window and KV are all there, and they are those of that very token."""
    runs = SnapshotRuns(toys.model(family, kernels))
    runs.start("leader", TOKENS)
    runs.run("leader", budget, POSITIONS)
    expected = cold(family)
    assert_same(runs.logits_of("leader"), expected)
    for position in POSITIONS:
        runs.resume(f"from {position}", "leader", position, TOKENS)
    result = runs.step(runs.rest())
    assert {row.error for row in result.rows} == {None}
    for position in POSITIONS:
        assert_same(runs.logits_of(f"from {position}"), expected[position:])


@pytest.mark.parametrize("kernels", KINDS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_mixed_batch_writes_its_snapshots(toys: Toys, family: Family, kernels: str) -> None:
    """R33, R34: a prefill leaves its snapshots while others decode, and the decodes leave theirs."""
    runs = SnapshotRuns(toys.model(family, kernels), block_size=32)
    sequences = {
        name: random.Random(name).choices(range(320), k=length)
        for name, length in (("young", 2), ("long", 90), ("prefill", 131))
    }
    for name, tokens in sequences.items():
        runs.start(name, tokens)
    runs.step({"young": 1, "long": 89})
    wanted = {"young": [2], "prefill": [1, 65, 100], "long": [90]}
    result = runs.step({"young": 1, "prefill": 131, "long": 1}, wanted)
    assert {row.request_id: list(row.snapshots) for row in result.rows} == wanted
    forks = {}
    for source, positions in wanted.items():
        for position in positions:
            rest = random.Random(f"{source} {position}").choices(range(320), k=20)
            forks[f"{source} {position}"] = [*sequences[source][:position], *rest]
            runs.resume(f"{source} {position}", source, position, forks[f"{source} {position}"])
    runs.step(runs.rest())
    for name, tokens in forks.items():
        assert_same(runs.logits_of(name), toys.expected(family, tokens)[-20:])


@pytest.mark.parametrize("block_size", [1, 300])
def test_resumed_equals_cold_on_the_aligned_layout(
    toys: Toys, cold: Callable[[Family], Tensor], block_size: int
) -> None:
    """With blocks barely as long as a state is large, and with one longer than the sequence."""
    runs = SnapshotRuns(toys.model("kimi_k3", "cpu"), block_size=block_size, layout="aligned")
    runs.start("leader", TOKENS)
    runs.run("leader", 50, POSITIONS)
    for position in POSITIONS:
        runs.resume(f"from {position}", "leader", position, TOKENS)
    runs.step(runs.rest())
    for position in POSITIONS:
        assert_same(runs.logits_of(f"from {position}"), cold("kimi_k3")[position:])


def test_a_snapshot_can_be_used_again_and_again(toys: Toys, cold: Callable[[Family], Tensor]) -> None:
    """R45: a restore reads the snapshot and never writes it."""
    runs = SnapshotRuns(toys.model("kimi_k3", "cpu"))
    runs.start("leader", TOKENS)
    runs.run("leader", 1000, [100])
    pages = runs.runner.arena.pages()
    before = pages[runs.sequences["leader"].snapshots[100]].copy()
    for name in ("first", "second"):
        runs.resume(name, "leader", 100, TOKENS)
        runs.step(runs.rest())
        assert_same(runs.logits_of(name), cold("kimi_k3")[100:])
    assert torch.equal(runs.logits_of("first"), runs.logits_of("second"))
    assert (pages[runs.sequences["leader"].snapshots[100]] == before).all()


@pytest.mark.parametrize("kernels", KINDS)
def test_snapshots_on_the_grid_change_no_bit_of_the_logits(toys: Toys, kernels: str) -> None:
    runs = SnapshotRuns(toys.model("kimi_k3", kernels))
    for name, positions in (("plain", ()), ("leaving", (64, 128, 141))):
        runs.start(name, TOKENS)
        runs.step({name: 141}, {name: positions})
    assert torch.equal(runs.logits_of("plain"), runs.logits_of("leaving"))
    last = runs.sequences["leaving"]
    state = runs.layout.first_recurrent_tile(0)
    arena = runs.runner.arena
    live, left = (arena.states(torch.tensor([pages])) for pages in (last.state, last.snapshots[141]))
    tiles = runs.layout.num_recurrent_layers * runs.layout.recurrent_tiles_per_layer
    assert torch.equal(
        arena.recurrent[live.tile_ids(state, tiles)], arena.recurrent[left.tile_ids(state, tiles)]
    )


@pytest.mark.parametrize("what", ["state", "kv"])
def test_a_broken_row_leaves_nothing(toys: Toys, what: str) -> None:
    """R50: neither a chunk that does not sample nor its neighbour's snapshots get around the check."""
    runs = SnapshotRuns(toys.model("kimi_linear", "cpu"))
    for name in ("broken", "fine"):
        runs.start(name, TOKENS)
    runs.step({"broken": 40, "fine": 40})
    broken = runs.sequences["broken"]
    runs.runner.arena.poison([broken.state[0] if what == "state" else broken.blocks[1]])
    result = runs.step({"broken": 60, "fine": 60}, {"broken": [41, 100], "fine": [41, 100]})
    first, second = result.rows
    assert first.error is not None
    assert "hidden states are not finite after 100 tokens" in first.error
    assert first.snapshots == ()
    assert (second.error, second.snapshots) == (None, (41, 100))


@pytest.mark.parametrize("part", ["recurrent", "conv"])
def test_a_snapshot_that_is_not_finite_is_not_reported(toys: Toys, part: str) -> None:
    """R34, R50: the answer names what was written and is sound, whatever was asked for."""
    runs = SnapshotRuns(toys.model("kimi_k3", "cpu"))
    model, layout = runs.recorder.forward, runs.layout

    def spoiling(inputs: StepInputs) -> StepOutput:
        output = model(inputs)
        first = layout.first_conv_tile(1) if part == "conv" else layout.first_recurrent_tile(2)
        tile = inputs.state.snapshot_tile_ids(first, 1)[1, 0]
        memory = inputs.state.conv if part == "conv" else inputs.state.recurrent
        memory[tile].view(-1)[3] = float("inf")
        return output

    runs.recorder.forward = spoiling  # type: ignore[method-assign]
    runs.start("a", TOKENS)
    (result,) = runs.step({"a": 141}, {"a": [30, 64, 141]}).rows
    assert (result.error, result.snapshots) == (None, (30, 141))
