"""The same deployment is the same machine in every plan: what one says of its bytes and times, all say."""

from __future__ import annotations

import pytest

from milepost.planner.deployment import Deployment
from milepost.planner.disagg.planning import plan_disagg
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.memory.plan import plan_memory
from milepost.planner.memory.question import MemoryQuestion
from milepost.planner.moe.plan import plan_moe
from milepost.planner.moe.question import MoeQuestion
from milepost.planner.serve.plan import plan_serve
from milepost.planner.serve.question import ServeQuestion
from milepost.planner.worksheet import Derivation

DEPLOYMENTS = [
    Deployment(tensor_parallel=8, hardware="gb300"),
    Deployment(tensor_parallel=2, data_parallel=8, hardware="gb300", kv_dtype="fp8"),
    Deployment(model="kimi-linear", hardware="h200", tensor_parallel=2, data_parallel=1, state_dtype="bf16"),
    Deployment(model="qwen3-next-80b-a3b", hardware="h200", tensor_parallel=4, data_parallel=2),
    Deployment(model="nemotron-3-nano", hardware="h100", tensor_parallel=2, data_parallel=2),
]


def numbers(derivations: tuple[Derivation, ...]) -> dict[str, float]:
    return {entry.name: entry.value for entry in derivations}


@pytest.mark.parametrize("deployment", DEPLOYMENTS, ids=lambda one: f"{one.model} TP{one.tensor_parallel}")
def test_bytes_of_a_device_and_of_a_request(deployment: Deployment) -> None:
    sheets = {
        "memory": numbers(plan_memory(MemoryQuestion(deployment=deployment)).derivations),
        "serve": numbers(plan_serve(ServeQuestion(deployment=deployment)).derivations),
        "disagg": numbers(plan_disagg(DisaggQuestion(deployment=deployment)).derivations),
        "moe": numbers(plan_moe(MoeQuestion(deployment=deployment)).derivations),
    }
    for name in ("device_bytes", "usable_bytes", "weight_bytes"):
        assert len({sheet[name] for sheet in sheets.values()}) == 1, name
    # The room of a step depends on its tokens, which plans choose.
    assert len({sheet["free_bytes"] + sheet["workspace_bytes"] for sheet in sheets.values()}) == 1
    of_requests = [sheets[name] for name in ("memory", "serve")]
    for name in ("state_bytes", "kv_bytes_per_token"):
        assert len({sheet[name] for sheet in of_requests}) == 1, name


def test_a_prompt_takes_as_long_in_serving_as_in_a_prefill_instance() -> None:
    deployment = DEPLOYMENTS[0]
    served = plan_serve(ServeQuestion(deployment=deployment, input_tokens=8192, token_budget=8192))
    apart = plan_disagg(
        DisaggQuestion(deployment=deployment, prefill_tensor_parallel=8, prefill_data_parallel=1)
    )
    (chosen,) = [choice for choice in apart.choices if choice.tensor_parallel == 8]
    assert chosen.prefill_seconds == pytest.approx(served.prefill_seconds, rel=0.01)
