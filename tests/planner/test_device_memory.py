"""What a device has left for states and KV: the same in a number and in its derivation."""

from __future__ import annotations

import math

import pytest

from milepost.errors import ConfigError
from milepost.planner.device_memory import derive_free_memory, free_memory
from milepost.planner.worksheet import Worksheet
from milepost.shapes.names import SHAPES, find_shape
from milepost.sim.cost.hardware import find_hardware
from milepost.sim.cost.part_work import RankSizes

K3 = find_shape("kimi-k3")[1]
GB300 = find_hardware("gb300")


@pytest.mark.parametrize("model", sorted(SHAPES))
@pytest.mark.parametrize("ranks", [(1, 1), (2, 1), (2, 4)])
def test_every_model_is_derived_as_it_is_computed(model: str, ranks: tuple[int, int]) -> None:
    shape, sizes = find_shape(model)[1], RankSizes(tensor_parallel=ranks[0], data_parallel=ranks[1])
    sheet = Worksheet()
    derived = derive_free_memory(sheet, shape, GB300, sizes, memory_share=0.9, tokens_per_step=512)
    assert derived == free_memory(shape, GB300, sizes, memory_share=0.9, tokens_per_step=512)
    assert sheet["free_bytes"] == derived.free_bytes


def test_k3_on_eight_holds_its_weights_and_not_on_four() -> None:
    eight = RankSizes(tensor_parallel=8)
    free = free_memory(K3, GB300, eight, memory_share=0.9, tokens_per_step=8192)
    # 1.560 TB of checkpoint, an eighth of it; norms, router and latent inputs are whole on each.
    assert 1.5600e12 / 8 < free.weight_bytes < 1.61e12 / 8
    assert free.usable_bytes == math.floor(288e9 * 0.9)
    assert free.free_bytes == free.usable_bytes - free.weight_bytes - free.workspace_bytes > 50e9
    four = free_memory(K3, GB300, RankSizes(tensor_parallel=4), memory_share=0.9, tokens_per_step=8192)
    assert four.free_bytes < 0


def test_a_larger_step_needs_more_room() -> None:
    sizes = RankSizes(tensor_parallel=8)
    rooms = [
        free_memory(K3, GB300, sizes, memory_share=0.9, tokens_per_step=tokens).workspace_bytes
        for tokens in (1, 256, 8192)
    ]
    assert rooms == sorted(rooms)
    assert len(set(rooms)) == 3


@pytest.mark.parametrize("share", [0.0, -1.0, 1.01, math.nan, math.inf])
def test_a_share_that_cannot_be_is_refused(share: float) -> None:
    with pytest.raises(ConfigError, match="memory_share must be above 0 and at most 1"):
        free_memory(K3, GB300, RankSizes(), memory_share=share, tokens_per_step=1)


@pytest.mark.parametrize("field", ["tokens_per_step", "logit_rows"])
def test_a_step_of_nothing_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be at least 1. Given: 0"):
        free_memory(K3, GB300, RankSizes(), memory_share=0.9, **{"tokens_per_step": 1, field: 0})


def test_weights_lead_back_to_the_numbers_of_the_config() -> None:
    sheet = Worksheet()
    derive_free_memory(sheet, K3, GB300, RankSizes(tensor_parallel=8), memory_share=0.9, tokens_per_step=512)
    # 92 layers of 896 experts, three matrices of 3,584 x 3,072 each.
    assert sheet["weights.routed_experts.routed_parameters"] == 92 * 896 * 3 * 3584 * 3072
    assert sheet["weights.embedding.sharded_parameters"] == 163_840 * 7168
    told = {one.name: one for one in sheet.derivations}
    counts = [name for name in told if name.endswith(("sharded_parameters", "routed_parameters"))]
    assert all(told[name].formula for name in counts if "layer_" not in name)
