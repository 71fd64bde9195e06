"""Memory plans of any model: bytes that add up, pages that hold what they say, refusals in one line."""

from __future__ import annotations

import math
import random
from typing import Any

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.memory.capacity import max_sequences
from milepost.memory.layout import paged_layout
from milepost.planner.deployment import Deployment
from milepost.planner.memory.layouts import LayoutPlan
from milepost.planner.memory.plan import MemoryPlan, plan_memory, plan_memory_of
from milepost.planner.memory.question import MemoryQuestion
from milepost.planner.worksheet import explain
from milepost.shapes.names import find_shape
from tests.planner.memory.plain_models import ATTENTION_ONLY, STATES_ONLY

K3 = find_shape("kimi-k3")[1]
ON_EIGHT = Deployment(tensor_parallel=8)


def plan(deployment: Deployment = ON_EIGHT, **asked: Any) -> MemoryPlan:
    return plan_memory(MemoryQuestion(deployment=deployment, **asked))


def held(layout: LayoutPlan, slots: float, context: int, requests: int) -> float:
    """Pages that `requests` requests take, counted one by one."""
    blocks = -(-context // layout.sequence_block_tokens)
    return requests * (slots * layout.pages_per_state + -(-blocks // layout.blocks_per_page))


@pytest.mark.parametrize("seed", range(30))
def test_batches_are_the_most_that_pages_hold(seed: int) -> None:
    rng = random.Random(seed)
    tensor_parallel = rng.choice([1, 2, 4, 8])
    deployment = Deployment(
        model=rng.choice(["kimi-k3", "kimi-linear"]),
        tensor_parallel=tensor_parallel,
        context_parallel=rng.choice([n for n in (1, 2, 4, 8) if tensor_parallel % n == 0]),
        kv_dtype=rng.choice(["bf16", "fp8"]),
        state_dtype=rng.choice(["fp32", "bf16"]),
    )
    slots = rng.choice([1.0, 2.0, 5.0, 1.75])
    planned = plan(
        deployment,
        compare=True,
        slots=slots,
        drafts=rng.choice([0, 3]),
        block_size=rng.choice([16, 64, 128]),
        kernel_alignment=rng.choice([32, 64, 128]),
        memory_bytes=rng.randint(20, 400) * 10**9,
        contexts=tuple(rng.randint(1, 1 << 20) for _ in range(4)),
    )
    assert [layout.name for layout in planned.layouts] == ["paged", "aligned", "lcm"]
    for place, row in enumerate(planned.batches):
        need = slots * planned.sizes.state_bytes + row.context_tokens * planned.sizes.kv_bytes_per_token
        assert row.ideal * need <= planned.device.budget_bytes < (row.ideal + 1) * need
        for layout in planned.layouts:
            batch = layout.batches[place]
            assert held(layout, slots, row.context_tokens, batch) <= layout.usable_pages
            assert held(layout, slots, row.context_tokens, batch + 1) > layout.usable_pages
            assert layout.num_pages * layout.page_bytes <= planned.device.budget_bytes
            assert batch <= row.ideal
    for layout in planned.layouts:
        padded = planned.sizes.state_bytes + layout.state_padding_bytes
        assert padded == layout.pages_per_state * layout.page_bytes
        assert layout.snapshots_that_fit == layout.usable_pages // layout.pages_per_state
        assert layout.sequence_block_tokens == layout.block_tokens * deployment.context_parallel


def test_the_paged_batch_is_what_the_allocator_admits() -> None:
    planned = plan(contexts=(1_000, 100_000))
    layout = paged_layout(K3, tensor_parallel=8)
    (paged,) = planned.layouts
    assert paged.batches == tuple(max_sequences(layout, paged.num_pages, n) for n in (1_000, 100_000))


def test_context_parallel_ranks_divide_kv_and_not_the_state() -> None:
    alone = plan(compare=True, memory_bytes=10**11)
    shared = plan(Deployment(tensor_parallel=8, context_parallel=8), compare=True, memory_bytes=10**11)
    assert shared.sizes.state_bytes == alone.sizes.state_bytes
    assert shared.sizes.kv_bytes_per_token == alone.sizes.kv_bytes_per_token / 8
    for one, eight in zip(alone.layouts, shared.layouts, strict=True):
        assert eight.page_bytes == one.page_bytes
        assert eight.tokens_that_fit == 8 * (one.tokens_that_fit or 0)
        assert eight.snapshots_that_fit == one.snapshots_that_fit


def test_heads_of_keys_and_values_are_divided_among_ranks_that_hold_the_same_tokens() -> None:
    """8 heads on 8 ranks are one each; where 4 ranks share a context by tokens, 4 each of a quarter."""
    assert K3.attention is not None
    attention = msgspec.structs.replace(K3.attention, kv_heads=8, row_dim=8 * 256)
    shape = msgspec.structs.replace(K3, attention=attention)
    sizes = [
        plan_memory_of(
            "grouped",
            shape,
            MemoryQuestion(deployment=Deployment(tensor_parallel=8, context_parallel=context)),
        ).sizes
        for context in (1, 4, 8)
    ]
    assert [size.row_bytes for size in sizes] == [2 * 256, 4 * 2 * 256, 8 * 2 * 256]
    assert len({size.kv_bytes_per_token for size in sizes}) == 1


def test_dtypes_and_drafts_change_what_they_say() -> None:
    base, half = plan(), plan(Deployment(tensor_parallel=8, state_dtype="bf16", kv_dtype="fp8"))
    window = 3 * 3 * 12 * 128 * 2
    assert base.sizes.layer_state_bytes - window == 2 * (half.sizes.layer_state_bytes - window)
    assert base.sizes.row_bytes == 2 * half.sizes.row_bytes
    assert plan(drafts=2).sizes.layer_state_bytes == base.sizes.layer_state_bytes + window * 2 // 3


def test_five_slots_against_one() -> None:
    one, five = plan(contexts=(8_192,)), plan(contexts=(8_192,), slots=5)
    assert one.batches[0].ideal > 1.5 * five.batches[0].ideal
    assert five.batches[0].request_bytes - one.batches[0].request_bytes == 4 * one.sizes.state_bytes


def test_a_short_request_wastes_most_where_blocks_are_long() -> None:
    paged, aligned, _ = plan(compare=True, short_tokens=100).layouts
    assert paged.short_request_waste_bytes < 0.1 * paged.short_request_bytes
    assert aligned.short_request_bytes == 4 * aligned.page_bytes
    assert aligned.short_request_waste_share > 0.3
    assert (paged.whole_block_prefix_tokens, aligned.whole_block_prefix_tokens) == (64, 768)
    assert {paged.unit_prefix_tokens, aligned.unit_prefix_tokens} == {16}


def test_what_is_free_is_what_the_shares_leave() -> None:
    device = plan().device
    assert device.budget_bytes == device.usable_bytes - device.weight_bytes - device.workspace_bytes
    assert device.usable_bytes == math.floor(0.9 * device.device_bytes)
    reserved = plan(reserve_bytes=7 * 10**9).device
    assert reserved.workspace_bytes == 7 * 10**9
    assert reserved.budget_bytes == device.budget_bytes + device.workspace_bytes - 7 * 10**9


def test_groups_are_as_many_as_hold_the_weights() -> None:
    assert plan(Deployment()).data_parallel == 16
    assert plan().data_parallel == 1
    assert plan(Deployment(tensor_parallel=8, expert_parallel=32)).data_parallel == 4


def test_a_model_that_keeps_no_state() -> None:
    planned = plan_memory_of(
        "mla", ATTENTION_ONLY, MemoryQuestion(deployment=ON_EIGHT, compare=True, contexts=(8_192,))
    )
    (layout,) = planned.layouts
    assert layout.name == "plain"
    assert layout.page_bytes == 64 * 93 * 1_152
    assert (layout.pages_per_state, layout.snapshots_that_fit) == (0, None)
    assert planned.sizes.state_bytes == layout.state_padding_bytes == 0
    assert planned.batches[0].ideal == planned.batches[0].all_attention
    assert layout.longest_sequence_tokens == layout.tokens_that_fit == layout.usable_pages * 64
    assert any("keeps a state" in note for note in planned.notes)


def test_a_model_that_keeps_only_states() -> None:
    planned = plan_memory_of(
        "kda", STATES_ONLY, MemoryQuestion(deployment=ON_EIGHT, slots=2, contexts=(1, 1 << 20))
    )
    (layout,) = planned.layouts
    assert layout.page_bytes == planned.sizes.state_bytes == 93 * 814_080
    assert (layout.tokens_that_fit, layout.longest_sequence_tokens) == (None, None)
    short, long = planned.batches
    assert short.by_layout == long.by_layout == (layout.usable_pages // 2,)
    assert short.all_attention is None


def test_groups_that_nobody_asked_for_are_noted_with_what_takes_fewer_devices() -> None:
    lone = plan(Deployment(hardware="h200"))
    assert lone.data_parallel == 256
    assert lone.notes[0].startswith("256 groups of 1 h200")
    assert "--tp 16 takes 16 devices instead of 256." in lone.notes[0]
    eight = plan(Deployment(hardware="h200", tensor_parallel=8))
    assert eight.notes[0].startswith("2 groups of 8 h200")
    assert "instead of" not in eight.notes[0]
    asked = plan(Deployment(hardware="h200", tensor_parallel=8, data_parallel=2))
    assert not any("groups of" in note for note in asked.notes)


@pytest.mark.parametrize(("model", "copies"), [("kimi-k3", 8), ("qwen3-next-80b-a3b", 4)])
def test_ranks_that_hold_the_same_kv_are_noted(model: str, copies: int) -> None:
    whole = plan(Deployment(model=model, tensor_parallel=8))
    assert any(note.startswith(f"{copies} of the --tp ranks hold the same KV.") for note in whole.notes)
    divided = plan(Deployment(model=model, tensor_parallel=8, context_parallel=copies))
    assert divided.sizes.kv_bytes_per_token * copies == whole.sizes.kv_bytes_per_token
    assert not any("hold the same KV" in note for note in divided.notes)


def test_every_number_has_a_derivation() -> None:
    planned = plan(compare=True)
    told = explain(planned.derivations, "batch.paged.8k")
    assert "paged.usable_pages" in told
    assert "config.json of kimi-k3" in told
    values = {entry.name: entry.value for entry in planned.derivations}
    assert values["state_bytes"] == planned.sizes.state_bytes
    assert values["budget_bytes"] == planned.device.budget_bytes
    for layout in planned.layouts:
        assert values[f"{layout.name}.tokens"] == layout.tokens_that_fit
        for row, batch in zip(planned.batches, layout.batches, strict=True):
            name = {1024: "1k", 1048576: "1M"}.get(row.context_tokens)
            if name:
                assert values[f"batch.{layout.name}.{name}"] == batch


def test_a_layout_that_cannot_be_is_a_note_in_a_comparison() -> None:
    planned = plan(compare=True, kernel_alignment=10**8)
    assert any(note.startswith("aligned: not one sequence fits") for note in planned.notes)
    with pytest.raises(ConfigError, match=r"aligned: not one sequence fits.*Choose a shorter block"):
        plan(layout="aligned", kernel_alignment=10**8)
    odd = plan(Deployment(model="kimi-linear"), compare=True, block_size=1, memory_bytes=10**11)
    assert {layout.name for layout in odd.layouts} >= {"aligned", "lcm"}


@pytest.mark.parametrize(
    ("deployment", "asked", "message"),
    [
        (Deployment(tensor_parallel=5), {}, r"must divide the 96 KDA heads.*Given: 5.*nearest.*: 4"),
        (
            Deployment(tensor_parallel=8, context_parallel=3),
            {},
            r"context_parallel must divide.*nearest.*: 2",
        ),
        (Deployment(tensor_parallel=8, expert_parallel=12), {}, r"expert_parallel must be whole groups of 8"),
        (
            Deployment(tensor_parallel=8, data_parallel=128),
            {},
            r"leave each rank an expert. Given: all 1024. The nearest that does: 512",
        ),
        (Deployment(model="kimi-k4"), {}, "Did you mean 'kimi-k3'"),
        (Deployment(hardware="gb30"), {}, "Did you mean 'gb300'"),
        (Deployment(kv_dtype="fp4"), {}, "kv_dtype must be one of bf16, fp8, fp32"),
        (Deployment(state_dtype="fp8"), {}, "state_dtype must be one of"),
        (Deployment(memory_share=float("nan")), {}, "memory_share must be above 0"),
        (
            Deployment(hardware="h200", tensor_parallel=8, data_parallel=1),
            {},
            r"doesn't fit.*fewest that hold it.*: 16 devices, tensor_parallel 16 and data_parallel 1",
        ),
        (Deployment(memory_share=0.001), {}, r"doesn't fit.*Not even 1,024 gb300"),
        (ON_EIGHT, {"layout": "pagd"}, "Did you mean 'paged'"),
        (ON_EIGHT, {"block_size": 0}, "block_size must be 1 to"),
        (ON_EIGHT, {"kernel_alignment": -1}, "kernel_alignment must be 1 to"),
        (ON_EIGHT, {"slots": 0.5}, "slots must be 1, the state of a running request"),
        (ON_EIGHT, {"slots": float("inf")}, "slots must be 1, the state of a running request"),
        (ON_EIGHT, {"contexts": ()}, "contexts must be 1 to 64"),
        (ON_EIGHT, {"contexts": (8, 9, 8)}, "contexts must differ from each other. Given: 8, 9, 8"),
        (ON_EIGHT, {"block_size": "64"}, r"Expected `int`, got `str` - at `\$.block_size`"),
        (Deployment(model=""), {}, "A model must be one of"),
        (ON_EIGHT, {"contexts": (0,)}, "contexts must be 1 to"),
        (ON_EIGHT, {"drafts": 2_000}, "drafts must be 0 to"),
        (
            ON_EIGHT,
            {"memory_bytes": 1_000},
            "memory must hold one state and one token of kimi-k3, 56,199,168",
        ),
    ],
)
def test_nonsense_is_one_line(deployment: Deployment, asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        plan(deployment, **asked)
    assert "\n" not in str(caught.value)


def test_the_fewest_devices_that_are_named_do_hold_it() -> None:
    with pytest.raises(ConfigError, match="32 devices, tensor_parallel 32 and data_parallel 1"):
        plan(Deployment(hardware="h100", tensor_parallel=1))
    assert plan(Deployment(hardware="h100", tensor_parallel=32, data_parallel=1)).device.budget_bytes > 0
    with pytest.raises(ConfigError, match="doesn't fit"):
        plan(Deployment(hardware="h100", tensor_parallel=24, data_parallel=1))
