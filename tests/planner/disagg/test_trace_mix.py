"""Mixes of recorded requests."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from milepost.errors import ConfigError, InputError
from milepost.planner.deployment import Deployment
from milepost.planner.disagg.planning import plan_disagg
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.trace_mix import trace_mix
from milepost.sim.traces.reading import read_trace
from milepost.sim.traces.trace import Trace
from tests.sim.traces.files import MOONCAKE

QUESTION = DisaggQuestion(against=())
LONGEST = 1 << 20


@pytest.fixture(scope="module")
def trace() -> Trace:
    return read_trace(MOONCAKE)


def test_means_are_those_of_the_requests(trace: Trace) -> None:
    mix = trace_mix(trace, QUESTION, LONGEST)
    requests = trace.requests
    assert mix.prompt_tokens == pytest.approx(trace.num_input / len(requests), rel=1e-3)
    steps = sum(request.num_output for request in requests)
    assert mix.output_tokens == pytest.approx(steps / len(requests))
    held = sum(request.num_output * (request.num_prompt + request.num_output) for request in requests)
    assert mix.held_tokens == pytest.approx(held / steps)
    assert sum(share.weight for share in mix.shares) == pytest.approx(1.0)
    assert mix.cached_tokens == 0


def test_hits_are_given_or_simulated(trace: Trace) -> None:
    given = trace_mix(trace, msgspec.structs.replace(QUESTION, hit_rate=0.25), LONGEST)
    assert given.cached_tokens == pytest.approx(0.25 * given.prompt_tokens, rel=0.01)
    simulated = trace_mix(trace, msgspec.structs.replace(QUESTION, simulated_bytes=10**12), LONGEST)
    assert 0 < simulated.cached_tokens < simulated.prompt_tokens
    assert "hits simulated" in simulated.source
    plan = plan_disagg(msgspec.structs.replace(QUESTION, simulated_bytes=10**12), trace)
    cold = plan_disagg(QUESTION, trace)
    assert plan.balance.prefill_per_decode_ratio < cold.balance.prefill_per_decode_ratio


def test_prompts_are_cut_to_the_models_longest(trace: Trace) -> None:
    mix = trace_mix(trace, QUESTION, 1000)
    assert max(share.prompt_tokens for share in mix.shares) <= 1000
    assert any("longer than the model reads" in note for note in mix.notes)


def test_a_trace_without_outputs_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "outputless.jsonl"
    row = {"timestamp": 0, "input_length": 1000, "output_length": 0, "hash_ids": [1, 2]}
    file.write_text(json.dumps(row) + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="does not say how long outputs are"):
        plan_disagg(QUESTION, read_trace(file))


def test_an_empty_trace_is_refused(trace: Trace) -> None:
    with pytest.raises(InputError, match="has no requests"):
        plan_disagg(QUESTION, msgspec.structs.replace(trace, requests=()))


def test_hits_of_lengths_alone_cannot_be_simulated(tmp_path: Path) -> None:
    file = tmp_path / "azure.csv"
    file.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n1,2000,30\n2,300,4\n", encoding="utf-8")
    lengths = read_trace(file)
    assert plan_disagg(QUESTION, lengths).mix.output_tokens == 17
    with pytest.raises((ConfigError, InputError)):
        plan_disagg(msgspec.structs.replace(QUESTION, simulated_bytes=10**12), lengths)


def test_a_state_that_does_not_fit_the_cache_is_said(trace: Trace) -> None:
    small = DisaggQuestion(against=(), simulated_bytes=1000, deployment=Deployment())
    with pytest.raises(ConfigError):
        plan_disagg(small, trace)


def test_requests_that_a_simulated_cache_cannot_hold_still_come(trace: Trace) -> None:
    """They are the longest: a mix without them is another one."""
    size = 2 * 10**9  # of 27,648 bytes a token: prompts above some 55,000 tokens never fit
    mix = trace_mix(trace, msgspec.structs.replace(QUESTION, simulated_bytes=size), LONGEST)
    every = trace_mix(trace, QUESTION, LONGEST)
    assert max(request.num_prompt for request in trace.requests) * 27_648 > size
    assert mix.prompt_tokens == pytest.approx(every.prompt_tokens, rel=1e-3)
    assert any("can never hold" in note for note in mix.notes)


def test_a_trace_of_requests_that_never_fit_is_planned_without_hits(trace: Trace) -> None:
    long = [one for one in trace.requests if one.num_prompt > 60_000]
    alone = msgspec.structs.replace(trace, requests=tuple(long))
    mix = trace_mix(alone, msgspec.structs.replace(QUESTION, simulated_bytes=10**9), LONGEST)
    assert mix.cached_tokens == 0
