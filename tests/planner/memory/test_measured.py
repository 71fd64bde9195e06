"""States of a request, measured on a trace in place of a number that is given."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.planner.deployment import Deployment
from milepost.planner.memory.plan import MemoryPlan, plan_memory
from milepost.planner.memory.question import MemoryQuestion
from milepost.planner.memory.report import memory_report
from milepost.sim.cost.hardware import find_hardware
from milepost.sim.traces.options import TraceOptions
from milepost.sim.traces.reading import read_trace
from milepost.sim.traces.trace import Trace

BLOCK = 512
ON_EIGHT = Deployment(tensor_parallel=8)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """40 prompts of their own, in Mooncake's form, so close that they run together."""
    rows = [
        {
            "timestamp": 50 * number,
            "input_length": 4 * BLOCK,
            "output_length": 60,
            "hash_ids": [10 * number + place for place in range(4)],
        }
        for number in range(40)
    ]
    path = tmp_path_factory.mktemp("traces") / "close.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return read_trace(path, TraceOptions())


def plan(trace: Trace, deployment: Deployment = ON_EIGHT, **asked: Any) -> MemoryPlan:
    question = MemoryQuestion(deployment=deployment, contexts=(2_108, 131_072), **asked)
    return plan_memory(question, trace)


def test_measured_states_take_the_place_of_given_ones(trace: Trace) -> None:
    planned = plan(trace, slots=5)
    found = planned.measured
    assert found is not None
    assert found.requests == 40
    assert found.running_peak > 1
    assert 1.0 <= planned.slots == found.needed_slots_mean < 2.0
    assert planned.slots_source == "measured on close"
    pages = planned.layouts[0]
    for row, batch in zip(planned.batches, pages.batches, strict=True):
        blocks = -(-row.context_tokens // pages.sequence_block_tokens)
        beyond = max(found.extra_slots_p99, (planned.slots - 1) * batch)
        assert batch * (pages.pages_per_state + blocks) + beyond * pages.pages_per_state <= pages.usable_pages
        assert row.others_slots < row.ideal
    assert "States of a request, measured on close" in {
        part.title for part in memory_report(planned).sections
    }


def test_what_can_not_be_simulated_is_one_line(trace: Trace) -> None:
    with pytest.raises(ConfigError, match="context_parallel must be 1 with a trace"):
        plan(trace, Deployment(tensor_parallel=8, context_parallel=2))
    with pytest.raises(ConfigError, match="only sizes are known"):
        plan(trace, Deployment(model="qwen3.5-4b"))


def test_hardware_of_a_file_is_simulated_too(trace: Trace, tmp_path: Path) -> None:
    own = msgspec.structs.replace(find_hardware("gb300"), name="mine")
    path = tmp_path / "mine.json"
    path.write_bytes(msgspec.json.encode(own))
    planned = plan(trace, Deployment(tensor_parallel=8, hardware=str(path)))
    assert planned.hardware == "mine"
    assert planned.measured is not None
