"""A row with anything non-finite in it says so, wherever it happened and whether it samples or not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from milepost.kernels.ops import Ops, load_ops
from milepost.kernels.paging import PagedKv, PagedState, Ragged
from milepost.models import Model, load_model
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.models.paged_batches import PagedBatches

LENGTHS = (5, 70, 3, 1)
SEQUENCES = [random.Random(length).choices(range(320), k=length) for length in LENGTHS]
WHOLE = dict(enumerate(LENGTHS))
BAD = {"nan": float("nan"), "inf": float("inf")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    parent = tmp_path_factory.mktemp("toys")
    return {
        family: write_toy_checkpoint(parent / family, family, dtype=torch.float32)
        for family in ("kimi_k3", "kimi_linear")
    }


def spoilt_kv(ops: Ops, mla_layer: int, bad: float) -> Ops:
    """One number of the KV row of row 1's 20th token, in one MLA layer."""

    def write(
        latent: Tensor, k_pe: Tensor, weight: Tensor, eps: float, kv: PagedKv, layer: int, ragged: Ragged
    ) -> None:
        ops.mla_write(latent, k_pe, weight, eps, kv, layer, ragged)
        if layer == mla_layer:
            position = ragged.start_list[1] + 19
            page = kv.block_table[1, position // kv.block_size]
            kv.cache[page, layer, position % kv.block_size, 5] = bad

    return replace(ops, mla_write=write)


def spoilt_state(ops: Ops, call: int, bad: float) -> Ops:
    """One number of what row 1's last token puts into one layer's state, and so into the state alone."""
    calls = 0

    def kda(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: PagedState,
        first_tile: int,
        ragged: Ragged,
    ) -> Tensor:
        nonlocal calls
        if calls == call:
            v = v.clone()
            v[ragged.offsets[2] - 1, 1, 3] = bad
        calls += 1
        return ops.kda(q, k, v, g, beta, state, first_tile, ragged)

    return replace(ops, kda=kda)


Spoil = Callable[[Ops, int, float], Ops]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("spoil", "layer"), [(spoilt_kv, 0), (spoilt_kv, 1), (spoilt_state, 0), (spoilt_state, 4)]
)
@pytest.mark.parametrize("kernels", ["reference", "cpu"])
@pytest.mark.parametrize("family", ["kimi_k3", "kimi_linear"])
def test_what_is_cached_shows_in_the_step_that_writes_it(
    folders: dict[str, Path], family: str, kernels: str, spoil: Spoil, layer: int, bad: str
) -> None:
    """R50: else NaN would be published, and poison whoever hits it."""
    model = load_model(folders[family], dtype=torch.float32, ops=spoil(load_ops(kernels), layer, BAD[bad]))
    assert len(model.spec.mla_layers) >= 2
    assert len(model.spec.kda_layers) >= 5
    batches = PagedBatches(model, SEQUENCES)
    batches.samples = []
    batches.step(WHOLE)
    assert batches.finite == [True, False, True, True]


@pytest.mark.parametrize("family", ["kimi_k3", "kimi_linear"])
def test_any_token_of_a_row_counts(folders: dict[str, Path], family: str) -> None:
    model = _with_broken_token(load_model(folders[family], dtype=torch.float32, ops=load_ops("cpu")), 7)
    batches = PagedBatches(model, [[1, 2, 3], [1, 7, 3], [7, 1, 2], [1, 2, 7]])
    batches.samples = [0]
    batches.step({0: 3, 1: 3, 2: 3, 3: 2})
    assert batches.finite == [True, False, False, True]
    batches.step({3: 1})
    assert batches.finite == [False]


def _with_broken_token(model: Model, token_id: int) -> Model:
    model._embedding = model._embedding.clone()
    model._embedding[token_id, 3] = float("nan")
    return model
