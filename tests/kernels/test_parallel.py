"""The parallel variants of compiled kernels give what the serial ones give."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from milepost.kernels import jit
from milepost.kernels.mla_attention import MlaDims
from milepost.kernels.mla_attention.cpu import mla_attention
from tests.kernels import test_mla
from tests.kernels.arenas import assert_near


def run_decodes(cache: torch.dtype) -> tuple[Tensor, ...]:
    dims = MlaDims(heads=11, lora=16, rope=4, nope=8, v=8)  # two groups of heads, the second not full
    case = test_mla.Case.random([1, 1, 1], [0, 40, 15], dims, 16).to(torch.float32, cache)
    return (mla_attention(case.q, case.kv_b, case.kv, test_mla.LAYER, case.rows),)


@pytest.mark.parametrize(
    "run",
    [
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
