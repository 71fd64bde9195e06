"""State slots of traces whose answer is known by hand."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from milepost.errors import ConfigError, InputError
from milepost.planner.deployment import Deployment
from milepost.planner.slots.measure import slots_of, spec_of
from milepost.planner.slots.state_slots import StateSlots
from milepost.sim.cost.hardware import find_hardware
from milepost.sim.models import find_model
from milepost.sim.replay.setup import parts_of
from milepost.sim.runs import RunSpec
from milepost.sim.sweep.point import run_point
from milepost.sim.traces.options import TraceOptions
from milepost.sim.traces.reading import read_trace
from tests.sim.block_traces import random_trace, timed_trace

BLOCK = 64
MODEL = "milepost-toy-k3"
TURNS = RunSpec(model=MODEL, policy="turns", hardware="cpu")


def test_one_request_alone_needs_its_state_and_the_snapshot_that_it_writes() -> None:
    """In its first step the state at the prompt's end is written beside the live one; then it has one."""
    prefill = slots_of(timed_trace((0.0, range(4), 1)), TURNS)
    assert (prefill.needed_slots_mean, prefill.needed_slots_peak, prefill.extra_slots_peak) == (2.0, 2.0, 1)
    assert prefill.kept_slots_peak == 0  # what is written counts as kept from the next step on

    whole = slots_of(timed_trace((0.0, range(4), 100)), TURNS)
    assert (whole.running_mean, whole.running_peak) == (1.0, 1)
    assert whole.kept_slots_peak == 1
    assert whole.needed_slots_peak == 2.0
    # two in the prompt's step, one in the 99 that draw the rest
    first_step = prefill.simulated_seconds
    expected = 1 + first_step / whole.simulated_seconds
    assert whole.needed_slots_mean == pytest.approx(expected)
    assert whole.kept_slots_mean == pytest.approx(1 - first_step / whole.simulated_seconds)
    assert whole.extra_slots_mean == pytest.approx(whole.needed_slots_mean - 1)


def test_without_snapshots_a_request_needs_one_slot() -> None:
    # no snapshot fits within the prompt, and the policy leaves none at its end
    spec = msgspec.structs.replace(TURNS, policy="every(4096)")
    found = slots_of(timed_trace((0.0, range(4), 20), (0.0, range(10, 14), 20)), spec)
    assert (found.needed_slots_mean, found.needed_slots_p99, found.needed_slots_peak) == (1.0, 1.0, 1.0)
    assert (found.extra_slots_p99, found.kept_slots_mean) == (0, 0.0)
    assert found.running_peak == 2


def test_a_turn_that_goes_on_copies_from_a_snapshot_for_one_step() -> None:
    """It resumes from the first turn's snapshot, which is needed while the copy runs, and writes its own."""
    first = (0.0, range(4), 1)
    alone = slots_of(timed_trace(first), TURNS)
    both = slots_of(timed_trace(first, (100.0, range(6), 1)), TURNS)
    assert both.hit_rate == pytest.approx(4 / 10)
    # live, written and copied from
    assert (both.extra_slots_peak, both.needed_slots_peak) == (2, 3.0)
    second_step = both.simulated_seconds - 100.0
    steps = alone.simulated_seconds + second_step
    expected = (2 * alone.simulated_seconds + 3 * second_step) / steps
    assert both.needed_slots_mean == pytest.approx(expected)


def test_many_that_resume_from_one_snapshot_need_it_once() -> None:
    others = [(100.0, [*range(4), 10 + number], 1) for number in range(5)]
    spec = msgspec.structs.replace(TURNS, policy="turns")
    found = slots_of(timed_trace((0.0, range(4), 1), *others), spec)
    assert found.running_peak == 5
    # five live states, five written, one copied from
    assert found.extra_slots_peak == 6


def test_kept_snapshots_of_chats_stay() -> None:
    chats = [(10.0 * number, range(100 * number, 100 * number + 4), 3) for number in range(4)]
    found = slots_of(timed_trace(*chats), TURNS)
    assert found.kept_slots_peak == 4
    assert found.running_peak == 1
    assert found.needed_slots_peak == 2.0


def test_a_queue_is_simulated_whatever_the_spec_says() -> None:
    trace = timed_trace((0.0, range(4), 5), (0.0, range(10, 14), 5))
    assert slots_of(trace, TURNS).spec.queueing
    assert run_point(TURNS, trace).states is None
    assert run_point(msgspec.structs.replace(TURNS, queueing=True), trace).states is not None


def test_spare_snapshots_are_not_needed() -> None:
    """`adaptive` leaves spare ones along a prompt while memory is free: kept, but nobody's need."""
    trace = timed_trace((0.0, range(40), 3))
    spec = msgspec.structs.replace(TURNS, policy="adaptive")
    found = slots_of(trace, spec)
    assert found.kept_slots_peak == 40  # one a block
    assert found.extra_slots_peak == 2  # at the message's end and a block before, for the same prompt again


def test_facts_of_the_trace() -> None:
    found = slots_of(timed_trace((0.0, range(2), 10), (5.0, range(4), 20)), TURNS)
    assert found.context_mean_tokens == (2 * BLOCK + 10 + 4 * BLOCK + 20) / 2
    assert found.context_p50_tokens == found.context_mean_tokens
    assert found.arrival_seconds == 5.0
    assert found.requests == 2


def test_the_need_of_a_batch() -> None:
    found = slots_of(timed_trace((0.0, range(4), 5)), TURNS)
    change = msgspec.structs.replace
    few = change(found, extra_slots_p99=4, needed_slots_mean=1.0625)
    assert [few.slots_for(batch) for batch in (1, 10, 64, 80, 200)] == [5, 14, 68, 85, 213]
    peak = change(few, running_peak=10)
    assert peak.slots_per_request == 1.4
    assert peak.source == "measured on 1 requests of made, turns, at most 10 at once"
    assert change(found, extra_slots_p99=0, needed_slots_mean=1.0).slots_for(7) == 7


def test_a_deployment_is_simulated_as_it_is_planned() -> None:
    deployment = Deployment(
        model=MODEL, hardware="cpu", tensor_parallel=2, kv_dtype="fp8", state_dtype="bf16"
    )
    spec = spec_of(deployment, find_hardware("h200"), 10**6)
    assert (spec.kv_itemsize, spec.state_itemsize, spec.tensor_parallel) == (1, 2, 2)
    assert (spec.model, spec.hardware, spec.budget_bytes, spec.queueing) == (MODEL, "cpu", 10**6, True)
    with pytest.raises(ConfigError, match="kv_dtype must be one of"):
        spec_of(msgspec.structs.replace(deployment, kv_dtype="fp4"), find_hardware("h200"), 10**6)


def test_too_much_load_is_said() -> None:
    """Three requests of some 40 s each within a minute, one at a time."""
    crowd = timed_trace(*((30.0 * number, range(4 * number, 4 * number + 4), 2500) for number in range(3)))
    spec = RunSpec(model="kimi-k3", hardware="gb300", tensor_parallel=8, policy="turns", max_num_seqs=1)
    found = slots_of(crowd, spec)
    assert found.simulated_seconds > 1.25 * 60
    assert "can't carry this load" in found.notes[0]
    assert "time_scale" in found.notes[0]
    calm = slots_of(timed_trace((0.0, range(4), 3), (1000.0, range(4), 3)), spec)
    assert not calm.notes


def test_memory_limits_the_batch_and_the_rest_is_kept() -> None:
    trace = random_trace(3, num_requests=60)
    crowd = msgspec.structs.replace(
        trace, requests=[msgspec.structs.replace(request, arrival=0.0) for request in trace.requests]
    )
    _, model = find_model(MODEL)
    spec = msgspec.structs.replace(TURNS, policy="adaptive")
    layout = parts_of(spec, crowd, model).layout
    page, state = layout.page_bytes, parts_of(spec, crowd, model).state_bytes
    longest = max(request.num_prompt for request in trace.requests) + 3
    room = 4 * (state + layout.blocks_for(longest) * page)
    found = slots_of(crowd, msgspec.structs.replace(spec, budget_bytes=room))
    assert found.refused == 0
    assert found.running_peak * state <= room
    assert (found.kept_slots_peak + 1) * state <= room  # one runs at least
    assert found.needed_slots_mean >= 1.0


def test_a_file_is_read_and_slowed_down(tmp_path: Path) -> None:
    rows = [
        {
            "timestamp": 1000 * number,
            "input_length": 1024,
            "output_length": 4,
            "hash_ids": [2 * number, 2 * number + 1],
        }
        for number in range(3)
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    fast = slots_of(read_trace(path, TraceOptions()), TURNS)
    slow = slots_of(read_trace(path, TraceOptions(time_scale=10.0, first=2)), TURNS)
    assert (fast.requests, slow.requests) == (3, 2)
    assert (fast.arrival_seconds, slow.arrival_seconds) == (2.0, 10.0)
    assert isinstance(fast, StateSlots)


def test_nothing_to_count() -> None:
    with pytest.raises(InputError, match="has no requests"):
        slots_of(timed_trace(), TURNS)
    trace = timed_trace((0.0, range(400), 3))
    _, model = find_model(MODEL)
    parts = parts_of(TURNS, trace, model)
    room = parts.state_bytes + 20 * parts.layout.page_bytes
    with pytest.raises(InputError, match=r"None of the 1 requests of made fits budget_bytes.*Give more"):
        slots_of(trace, msgspec.structs.replace(TURNS, budget_bytes=room))
