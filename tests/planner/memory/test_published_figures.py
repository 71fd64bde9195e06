"""Figures that others published or logged, which the plan must come to."""

from __future__ import annotations

from typing import Any

import pytest

from milepost.planner.deployment import Deployment
from milepost.planner.memory.plan import MemoryPlan, plan_memory, plan_memory_of
from milepost.planner.memory.question import MemoryQuestion
from tests.planner.memory.plain_models import STATES_OF_1_MB

GB = 10**9


def plan(
    model: str, *, kv_dtype: str = "bf16", tp: int = 1, dp: int = 0, cp: int = 1, **asked: Any
) -> MemoryPlan:
    deployment = Deployment(
        model=model, kv_dtype=kv_dtype, tensor_parallel=tp, data_parallel=dp, context_parallel=cp
    )
    return plan_memory(MemoryQuestion(deployment=deployment, **asked))


@pytest.mark.parametrize(
    ("model", "kv_dtype", "request_gb", "batch", "all_attention"),
    [
        ("kimi-linear", "bf16", 2.157, 92, 24),
        ("kimi-k3", "bf16", 7.697, 25, 7),
        ("kimi-linear", "fp8", 1.100, 181, None),
        ("kimi-k3", "fp8", 4.073, 49, None),
    ],
)
def test_batches_of_262144_tokens_in_200_gb(
    model: str, kv_dtype: str, request_gb: float, batch: int, all_attention: int | None
) -> None:
    (row,) = plan(model, kv_dtype=kv_dtype, memory_bytes=200 * GB, contexts=(262_144,)).batches
    assert round(row.request_bytes / GB, 3) == request_gb
    assert row.ideal == batch
    if all_attention is not None:
        assert row.all_attention == all_attention


@pytest.mark.parametrize(("request_bytes", "batch"), [(5 * GB, 40), (2 * GB, 100)])
def test_the_formula_of_the_batch(request_bytes: int, batch: int) -> None:
    """200 GB hold 40 requests of 5 GB and 100 of 2 GB; here of states alone, which are 1 MB each."""
    asked = MemoryQuestion(
        memory_bytes=200 * GB,
        slots=request_bytes / 1e6,
        contexts=(1,),
        deployment=Deployment(hardware="h200"),
    )
    (row,) = plan_memory_of("states of 1 MB", STATES_OF_1_MB, asked).batches
    assert row.request_bytes == request_bytes
    assert row.ideal == batch


def test_all_attention_takes_what_layers_of_the_same_depth_take() -> None:
    for model, gigabytes in (("kimi-linear", 8.15), ("kimi-k3", 28.09)):
        kv = plan(model, memory_bytes=200 * GB).sizes.all_attention_kv_bytes_per_token
        assert round(262_144 * kv / GB, 2) == gigabytes


@pytest.mark.parametrize(
    ("model", "tp", "page_mb", "pages", "whole"),
    [("kimi-k3", 8, 1.77, 31.75, 32), ("kimi-linear", 1, 0.516, 84.05, 85)],
)
def test_pages_of_a_state(model: str, tp: int, page_mb: float, pages: float, whole: int) -> None:
    planned = plan(model, tp=tp)
    (layout,) = planned.layouts
    assert round(layout.page_bytes / 1e6, 3) == pytest.approx(page_mb, abs=0.005)
    assert planned.sizes.state_bytes / layout.page_bytes == pytest.approx(pages, abs=0.08)
    assert layout.pages_per_state == whole


def test_parameters_and_checkpoints() -> None:
    k3, linear = plan("kimi-k3", tp=8).device, plan("kimi-linear").device
    assert k3.parameters == 2_779_484_476_000
    assert round(k3.checkpoint_bytes / 1e12, 3) == 1.560
    experts = {part.name: part for part in k3.parts}["routed experts"]
    assert round(experts.checkpoint_bytes / 1e12, 3) == 1.446
    assert round((k3.checkpoint_bytes - experts.checkpoint_bytes) / 1e9, 1) == 113.5
    assert round(linear.parameters / 1e9, 2) == 49.12
    assert linear.checkpoint_bytes == 2 * linear.parameters
    assert sum(part.device_bytes for part in k3.parts) == pytest.approx(k3.weight_bytes, abs=1)


# What vLLM logs, by the options that give it: block, and the padding of a layer's state in percent where the
# log has it. Alignment and drafts that are not on record are chosen so that both come out; see `docs/why.md`.
LOGGED: list[tuple[str, dict[str, Any], int, float | None]] = [
    ("qwen3.5-4b", {"kernel_alignment": 16}, 528, 0.76),
    ("qwen3-next-80b-a3b", {"kernel_alignment": 16}, 1_056, 0.76),
    ("qwen3-next-80b-a3b", {"kernel_alignment": 16, "drafts": 2}, 1_072, None),
    ("qwen3.8-27b", {"kernel_alignment": 64, "drafts": 2, "kv_dtype": "fp8"}, 1_600, 0.88),
    ("nemotron-3-nano", {"kernel_alignment": 64, "kv_dtype": "fp8"}, 4_224, None),
    ("nemotron-3-nano", {"kernel_alignment": 64, "kv_dtype": "fp8", "drafts": 8}, 4_416, None),
    ("kimi-k3", {"kernel_alignment": 128, "kv_dtype": "fp8", "tp": 8}, 1_536, 8.68),
]


@pytest.mark.parametrize(("model", "asked", "block", "padding"), LOGGED)
def test_blocks_that_vllm_logs(model: str, asked: dict[str, Any], block: int, padding: float | None) -> None:
    (layout,) = plan(model, layout="aligned", memory_bytes=10**12, **asked).layouts
    assert layout.block_tokens == block
    assert layout.steps is not None
    if padding is not None:
        assert round(100 * layout.steps.layer_padding_share, 2) == padding


def test_a_block_of_k3_is_eight_times_as_long_where_eight_ranks_share_a_context() -> None:
    """Steps of 32 give 1,440, which steps of 128 round up to the 1,536 that vLLM logs."""
    asked: dict[str, Any] = {"kv_dtype": "fp8", "tp": 8, "layout": "aligned"}
    (fine,) = plan("kimi-k3", **asked, kernel_alignment=32).layouts
    assert (fine.block_tokens, -(-fine.block_tokens // 128) * 128) == (1_440, 1_536)
    (shared,) = plan("kimi-k3", **asked, kernel_alignment=128, cp=8).layouts
    assert shared.sequence_block_tokens == shared.whole_block_prefix_tokens == 12_288


def test_k3_with_data_parallel_attention_takes_more_than_5653_rows() -> None:
    planned = plan("kimi-k3", layout="aligned", kernel_alignment=128)
    assert planned.sizes.layer_state_bytes == 6_291_456 + 221_184
    assert planned.sizes.layer_state_bytes // planned.sizes.row_bytes == 5_653
    assert planned.layouts[0].block_tokens == 5_760


def test_a_state_with_seven_drafts_is_what_an_engine_reports() -> None:
    """ATOM, K3 on 8 ranks, 7 drafts and a state for each: 384 sequences take 3,072 slots, 173.44 GiB."""
    planned = plan("kimi-k3", tp=8, drafts=7, slots=8, memory_bytes=10**15, contexts=(1,))
    assert round(384 * 8 * planned.sizes.state_bytes / 2**30, 2) == 173.44


@pytest.mark.parametrize(("context", "batch"), [(8_192, 105), (131_072, 30), (262_144, 17), (1_000_000, 5)])
def test_what_aiconfigurator_charges(context: int, batch: int) -> None:
    """Its batches come out with five states, 1,024 tokens of output, bf16 KV, attention on 2 ranks of 16.

    145.43e9 bytes are what its model leaves of a GB300: all 284,208 MiB, less 137.47 GiB of weights, 0.33 of
    communication, 4.2 of others and 0.1 of activations (aiconfigurator 0.12.0, backend sglang). By the same
    division its 32.5 ms a token at 8 requests a rank come out too.
    """
    length = context + 1_024
    (row,) = plan("kimi-k3", tp=2, slots=5, memory_bytes=145_430_000_000, contexts=(length,)).batches
    assert row.ideal == batch
