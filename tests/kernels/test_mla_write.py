"""MLA row writes: norm, cast, and the right places only."""

from __future__ import annotations

import pytest
import torch

from milepost.errors import InvariantError
from milepost.kernels.mla_write import cpu, reference
from milepost.kernels.paging import PagedKv
from tests.kernels.arenas import assert_near, kv_arena, ragged
from tests.kernels.mla_cases import LAYER, LAYERS
from tests.kernels.targets import TARGETS, using

LENGTHS, STARTS = [1, 20, 3, 700], [8, 5, 0, 30]
EPS = 1e-6


def arena(lora: int, rope: int, dtype: torch.dtype) -> PagedKv:
    contexts = [start + length for start, length in zip(STARTS, LENGTHS, strict=True)]
    return kv_arena(contexts, layers=LAYERS, block_size=8, row_dim=lora + rope, dtype=dtype)


def operands(lora: int, rope: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Latents and k_pe as parts of something wider, and a weight."""
    fused = torch.randn(sum(LENGTHS), lora + rope + 4) * 3
    return fused[:, 2 : 2 + lora], fused[:, 2 + lora : 2 + lora + rope], torch.rand(lora) + 0.5


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("lora", "rope"), [(5, 3), (64, 16), (37, 0)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_written_and_nothing_else(
    target: str, lora: int, rope: int, dtype: torch.dtype, threads: int
) -> None:
    latent, k_pe, weight = operands(lora, rope)
    got, want = arena(lora, rope, dtype), arena(lora, rope, torch.float64)
    want.block_table.copy_(got.block_table)
    rows = ragged(LENGTHS, STARTS)
    with using(target, threads):
        cpu.mla_write(latent, k_pe, weight, EPS, got, LAYER, rows)
    reference.mla_write(latent.double(), k_pe.double(), weight.double(), EPS, want, LAYER, rows)
    written = torch.isfinite(want.cache)
    assert torch.equal(torch.isfinite(got.cache), written)
    assert_near(got.cache[written], want.cache[written], 1e-6 if dtype == torch.float32 else 4e-3)
    # k_pe as it is, rounded to the nearest.
    places = got.cache[got.block_table[0, 1], LAYER, 0, lora:]
    assert torch.equal(places, k_pe[0].to(dtype))


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_is_the_same_in_any_company(target: str) -> None:
    latent, k_pe, weight = operands(37, 3)
    together, alone = arena(37, 3, torch.float32), arena(37, 3, torch.float32)
    alone.block_table.copy_(together.block_table)
    with using(target, 2):
        cpu.mla_write(latent, k_pe, weight, EPS, together, LAYER, ragged(LENGTHS, STARTS))
        cpu.mla_write(
            latent[:1],
            k_pe[:1],
            weight,
            EPS,
            PagedKv(alone.cache, alone.block_table[:1].contiguous()),
            LAYER,
            ragged([1], [8]),
        )
    page = int(alone.block_table[0, 1])
    assert torch.equal(alone.cache[page, LAYER, 0], together.cache[page, LAYER, 0])


def test_wrong_shapes_are_named() -> None:
    latent, k_pe, weight = operands(5, 3)
    kv, rows = arena(5, 3, torch.float32), ragged(LENGTHS, STARTS)
    with pytest.raises(InvariantError, match=r"must fill rows of 8\. Given: 5 \+ 2"):
        cpu.mla_write(latent, k_pe[:, :2], weight, EPS, kv, LAYER, rows)
    with pytest.raises(InvariantError, match=r"weight must have shape \[5\]"):
        reference.mla_write(latent, k_pe, weight[:4], EPS, kv, LAYER, rows)
    with pytest.raises(InvariantError, match="layer must be below 3"):
        cpu.mla_write(latent, k_pe, weight, EPS, kv, 3, rows)
    with pytest.raises(InvariantError, match="must be float32"):
        cpu.mla_write(latent.double(), k_pe, weight, EPS, kv, LAYER, rows)
