"""The decoder against the float64 reference model, over paged, shuffled and poisoned memory."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from milepost.config import LAYOUTS
from milepost.kernels.ops import load_ops
from milepost.models import Model, load_model
from milepost.testing.reference_model import ReferenceModel
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.models.paged_batches import PagedBatches

Family = Literal["kimi_k3", "kimi_linear"]
Steps = Sequence[Mapping[int, int]]

FAMILIES: tuple[Family, ...] = ("kimi_k3", "kimi_linear")
LENGTHS = (1, 9, 20, 3)
LIMITS = {torch.float64: 1e-9, torch.float32: 1e-4}
SHAPES: dict[str, Steps] = {
    "one sequence after the other": [],
    "everything at once": [{0: 1, 1: 9, 2: 20, 3: 3}],
    "single tokens": [{2: 1}] * 20 + [{1: 1}] * 9,
    "decodes beside chunks": [{2: 7, 0: 1}, {1: 3, 2: 1}, {3: 2, 1: 1, 2: 8}, {2: 1, 3: 1, 1: 5}],
}

SEQUENCES = [random.Random(length).choices(range(320), k=length) for length in LENGTHS]


class Toys:
    """Toy checkpoints with their reference logits, made once per kind."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, tuple[Path, list[Tensor]]] = {}

    def get(self, family: Family, **sizes: Any) -> tuple[Path, list[Tensor]]:  # sizes of any kind
        """Folder and reference logits [tokens, vocab] of each sequence."""
        key = f"{family} {sorted(sizes.items())}"
        if key not in self._made:
            folder = self._folder / str(len(self._made))
            write_toy_checkpoint(folder, family, **{"dtype": torch.float32} | sizes)
            reference = ReferenceModel.load(folder)
            self._made[key] = folder, [_reference_logits(reference, tokens) for tokens in SEQUENCES]
        return self._made[key]


def _reference_logits(reference: ReferenceModel, tokens: Sequence[int]) -> Tensor:
    state = reference.fresh_state()
    return torch.stack([reference.step(token, state) for token in tokens])


@pytest.fixture(scope="module")
def toys(tmp_path_factory: pytest.TempPathFactory) -> Toys:
    torch.set_num_threads(1)
    return Toys(tmp_path_factory.mktemp("toys"))


def _check(model: Model, expected: Sequence[Tensor], batches: PagedBatches, steps: Steps) -> None:
    for got, want in zip(batches.run(steps), expected, strict=True):
        assert got.dtype == model.dtype
        error = (got.double() - want).norm() / want.norm()
        assert error < LIMITS[model.dtype]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits(toys: Toys, family: Family, dtype: torch.dtype, shape: str) -> None:
    folder, expected = toys.get(family)
    model = load_model(folder, dtype=dtype, ops=load_ops("reference"))
    _check(model, expected, PagedBatches(model, SEQUENCES), SHAPES[shape])


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_the_cpu_kernels(toys: Toys, family: Family, shape: str) -> None:
    folder, expected = toys.get(family)
    model = load_model(folder, dtype=torch.float32, ops=load_ops("cpu"))
    _check(model, expected, PagedBatches(model, SEQUENCES), SHAPES[shape])


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("block_size", [1, 5, 64])
@pytest.mark.parametrize("seed", range(2))
def test_random_batches(toys: Toys, block_size: int, seed: int, layout: str) -> None:
    folder, expected = toys.get("kimi_k3")
    model = load_model(folder, dtype=torch.float64, ops=load_ops("reference"))
    batches = PagedBatches(model, SEQUENCES, block_size=block_size, seed=seed, layout=layout)
    _check(model, expected, batches, _random_steps(random.Random(seed)))


def _random_steps(rng: random.Random) -> Steps:
    left = dict(enumerate(LENGTHS))
    steps = []
    while left:
        rows = rng.sample(sorted(left), rng.randint(1, len(left)))
        step = {index: rng.randint(1, left[index]) for index in rows}
        left = {index: count - step.get(index, 0) for index, count in left.items()}
        left = {index: count for index, count in left.items() if count}
        steps.append(step)
    return steps


@pytest.mark.parametrize("kernels", ["reference", "cpu"])
@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_off_the_grid(toys: Toys, family: Family, kernels: str) -> None:
    """One sequence in chunks that end before, on and behind the KDA kernel's grid of 64 tokens."""
    folder, _ = toys.get(family, num_layers=4)
    tokens = random.Random(7).choices(range(320), k=200)
    expected = _reference_logits(ReferenceModel.load(folder), tokens)
    model = load_model(folder, dtype=torch.float32, ops=load_ops(kernels))
    batches = PagedBatches(model, [tokens], block_size=64)
    _check(model, [expected], batches, [{0: 63}, {0: 1}, {0: 1}, {0: 62}, {0: 2}, {0: 71}])


VARIANTS: list[tuple[Family, dict[str, Any]]] = [
    ("kimi_k3", {"packed_experts": False}),
    ("kimi_k3", {"attn_res_block": 1}),
    ("kimi_k3", {"attn_res_block": 20, "first_dense": 0}),
    ("kimi_k3", {"num_layers": 4, "full_attn_layers": [1, 2], "first_dense": 3}),
    ("kimi_k3", {"num_layers": 4, "num_shared_experts": 1, "top_k": 1, "gate_lower_bound": -2.5}),
    ("kimi_linear", {"num_layers": 3, "full_attn_layers": [2], "conv_size": 2, "rope_head_dim": 16}),
    ("kimi_linear", {"num_layers": 4, "top_k": 12, "first_dense": 4}),
    ("kimi_k3", {"num_layers": 3, "full_attn_layers": [1], "latent_norm": False, "num_shared_experts": 0}),
    ("kimi_linear", {"num_layers": 2, "full_attn_layers": [1], "num_shared_experts": 0}),
]


@pytest.mark.parametrize(("family", "sizes"), VARIANTS, ids=str)
def test_variants(toys: Toys, family: Family, sizes: dict[str, Any]) -> None:
    folder, expected = toys.get(family, **sizes)
    model = load_model(folder, dtype=torch.float64, ops=load_ops("reference"))
    _check(model, expected, PagedBatches(model, SEQUENCES), SHAPES["decodes beside chunks"])


@pytest.mark.parametrize(("family", "num_experts"), [("kimi_k3", 16), ("kimi_linear", 12)])
def test_bfloat16_is_near(toys: Toys, family: Family, num_experts: int) -> None:
    """With all experts chosen: a flipped choice between random experts would drown the rounding."""
    folder, expected = toys.get(family, dtype=torch.bfloat16, top_k=num_experts)
    model = load_model(folder, dtype=torch.bfloat16, ops=load_ops("reference"))
    batches = PagedBatches(model, SEQUENCES)
    for got, want in zip(batches.run(SHAPES["everything at once"]), expected, strict=True):
        assert got.dtype == torch.float32
        assert torch.nn.functional.cosine_similarity(got.double(), want).mean() > 0.995


def test_only_sampled_tokens_get_logits(toys: Toys) -> None:
    folder, expected = toys.get("kimi_k3")
    model = load_model(folder, dtype=torch.float64, ops=load_ops("reference"))
    batches = PagedBatches(model, SEQUENCES)
    batches.samples = [19, 0]
    batches.step({2: 20})
    assert torch.allclose(batches.logits[2][0], expected[2][[19, 0]])
    batches.samples = []
    batches.step({1: 9})
    assert batches.logits[1][0].shape == (0, model.spec.vocab_size)


def test_a_step_leaves_other_pages_alone(toys: Toys) -> None:
    """Pages that no row of the step owns keep every byte, the dummy page included."""
    folder, _ = toys.get("kimi_k3")
    model = load_model(folder, dtype=torch.float32, ops=load_ops("reference"))
    batches = PagedBatches(model, SEQUENCES)
    batches.step({1: 4, 2: 6})
    before = batches.pages()
    batches.step({1: 5})
    changed = (batches.pages() != before).any(1).nonzero().flatten().tolist()
    assert set(changed) == set(batches.pages_of(1, num_tokens=9))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_states_are_written_where_the_layout_says(toys: Toys, family: Family, layout: str) -> None:
    """Every tile that the layout names is written, and no byte of the padding between and behind them."""
    folder, _ = toys.get(family)
    model = load_model(folder, dtype=torch.float32, ops=load_ops("reference"))
    batches = PagedBatches(model, SEQUENCES, layout=layout)
    batches.step({1: 4})
    cut = batches.layout
    named = set()
    for index in range(len(model.spec.kda_layers)):
        first = cut.first_recurrent_tile(index)
        named |= {*range(first, first + cut.recurrent_tiles_per_layer)}
        first = cut.first_conv_tile(index)
        named |= {*range(first, first + cut.conv_tiles_per_layer)}
    assert len(named) == cut.state_tiles
    tiles = batches.pages()[batches.pages_of(1, num_tokens=0)].view(-1, cut.tile_bytes)
    written = (tiles != 0xFF).any(1).nonzero().flatten().tolist()
    assert set(written) == named
