"""The parallel variants of compiled kernels give what the serial ones give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from milepost.kernels import jit
from milepost.kernels.kda.cpu import kda
from milepost.kernels.mla_attention import MlaDims
from milepost.kernels.mla_attention.cpu import mla_attention
from milepost.kernels.short_conv.cpu import short_conv
from tests.kernels import kda_cases, test_mla, test_short_conv
from tests.kernels.arenas import assert_near, kda_arena, ragged


def run_kda() -> tuple[Tensor, ...]:
    lengths, starts = [1, 70, 1, 20], [5, 60, 0, 0]
    inputs = kda_cases.make_inputs(sum(lengths), 3, 32)
    rows, arena = ragged(lengths, starts), kda_arena(4, 3, 32, 16)
    kda_cases.fill(arena, rows)
    arena = arena.as_dtype(torch.float32)
    o = kda(*inputs.to(torch.float32).all(), arena.state, arena.first_tile, rows)
    return o, arena.state.recurrent[arena.written()]


def run_short_conv() -> tuple[Tensor, ...]:
    case = test_short_conv.Case.random([1, 30, 2], [0, 4, 70], 8, 4, 10).to(torch.float32)
    y = short_conv(case.u, case.weight, case.state, test_short_conv.FIRST_TILE, case.rows)
    return y, case.state.conv[case.written()]


def run_decodes(cache: torch.dtype) -> tuple[Tensor, ...]:
    dims = MlaDims(heads=11, lora=16, rope=4, nope=8, v=8)  # two groups of heads, the second not full
    case = test_mla.Case.random([1, 1, 1], [0, 40, 15], dims, 16).to(torch.float32, cache)
    return (mla_attention(case.q, case.kv_b, case.kv, test_mla.LAYER, case.rows),)


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(run_kda, id="kda"),
        pytest.param(run_short_conv, id="short_conv"),
        pytest.param(lambda: run_decodes(torch.float32), id="mla"),
        pytest.param(lambda: run_decodes(torch.bfloat16), id="mla-bf16-cache"),
    ],
)
def test_parallel_equals_serial(
    run: Callable[[], tuple[Tensor, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    variants: list[bool] = []
    original = jit.Kernel._run

    def recorded(self: jit.Kernel, parallel: bool, args: tuple[jit.Array | float, ...]) -> None:
        variants.append(parallel)
        original(self, parallel, args)

    monkeypatch.setattr(jit.Kernel, "_run", recorded)
    torch.manual_seed(1)
    serial = run()
    assert variants
    assert not any(variants)
    variants.clear()
    torch.set_num_threads(2)
    torch.manual_seed(1)
    with jit.all_work_in_parallel():
        parallel = run()
    assert variants
    assert all(variants)
    for got, want in zip(parallel, serial, strict=True):
        assert_near(got, want, 1e-6)
