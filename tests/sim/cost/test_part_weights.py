"""Weights by part: the published totals follow, and ranks divide them as they should."""

from __future__ import annotations

import msgspec
import pytest

from milepost.models.summary import count_parameters
from milepost.sim.cost.part_weights import EXPERTS, HEAD, rank_weight_bytes, weights_of
from milepost.sim.models import MODELS, find_model


def test_kimi_k3_has_the_published_parameters_and_bytes() -> None:
    _, spec = find_model("kimi-k3")
    parts = weights_of(spec)
    assert sum(part.parameters for part in parts.values()) == 2_779_484_476_000
    assert sum(part.activated for part in parts.values()) == 104_189_612_640
    experts = parts[EXPERTS]
    assert experts.parameters * experts.bytes_per_parameter == 92 * 896 * 17_547_264
    rest = rank_weight_bytes(spec, 1, 1) - experts.parameters * experts.bytes_per_parameter
    assert rest == pytest.approx(113.5e9, rel=1e-3)
    assert rank_weight_bytes(spec, 1, 1) == pytest.approx(1.560e12, rel=1e-3)


def test_attention_weights_are_the_published_gigabytes() -> None:
    parts = weights_of(find_model("kimi-k3")[1])
    assert parts["KDA projections"].parameters * 2 == pytest.approx(61.2e9, rel=1e-2)
    assert parts["MLA projections"].parameters * 2 == pytest.approx(11.1e9, rel=1e-2)


@pytest.mark.parametrize(
    "name",
    [
        # Listing K3's half a million tensors takes seconds; its totals are checked by number above.
        pytest.param(name, marks=pytest.mark.slow) if name == "kimi-k3" else name
        for name in MODELS
    ],
)
def test_the_sum_is_what_the_checkpoint_holds(name: str) -> None:
    _, spec = find_model(name)
    counted, parts = count_parameters(spec), weights_of(spec)
    assert sum(part.parameters for part in parts.values()) == counted.total
    assert sum(part.activated for part in parts.values()) == counted.activated


@pytest.mark.parametrize("tensor_parallel", [1, 2, 8])
def test_ranks_hold_everything_together(tensor_parallel: int) -> None:
    _, spec = find_model("kimi-k3")
    once = rank_weight_bytes(spec, 1, 1)
    replicated = sum(part.replicated * part.bytes_per_parameter for part in weights_of(spec).values())
    together = tensor_parallel * rank_weight_bytes(spec, tensor_parallel, tensor_parallel)
    assert together == pytest.approx(once + (tensor_parallel - 1) * replicated)


def test_unpacked_experts_take_two_bytes() -> None:
    _, spec = find_model("kimi-k3")
    loose = msgspec.structs.replace(spec, mxfp4_group=None)
    assert weights_of(loose)[EXPERTS].bytes_per_parameter == 2.0
    assert weights_of(spec)[EXPERTS].bytes_per_parameter == 0.5 + 1 / 32
    assert weights_of(spec)[HEAD].parameters == 163_840 * 7_168
