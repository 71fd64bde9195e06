"""Lengths, hits and state slots of a plan from a trace."""

from __future__ import annotations

import pytest

from milepost.errors import ConfigError, InputError
from milepost.planner.deployment import Deployment
from milepost.planner.serve.from_trace import requests_of_trace
from tests.sim.block_traces import timed_trace

BLOCK = 64
TOY = Deployment(model="milepost-toy-k3", hardware="cpu")


def test_lengths_are_means_and_a_resent_prompt_hits() -> None:
    # The second turn has the first one's four blocks; the third shares nothing.
    trace = timed_trace((0.0, [1, 2, 3, 4], 10), (60.0, [1, 2, 3, 4, 5, 6], 20), (120.0, [9, 10], 30))
    found = requests_of_trace(trace, TOY)
    assert found.input_tokens == 12 * BLOCK // 3
    assert found.output_tokens == 20
    # 256 of 768 tokens hit at most, a third of the mean prompt.
    assert 0 < found.hit_tokens <= found.input_tokens / 3
    assert 1.0 < found.slots <= 2.0  # a prompt's last step writes a snapshot beside the live state
    assert "3 requests of made" in found.source
    assert "states needed a running request" in found.notes[0]


def test_contexts_that_ranks_divide_are_simulated_whole_and_that_is_said() -> None:
    divided = Deployment(model="kimi-linear", hardware="h200", tensor_parallel=2, context_parallel=2)
    found = requests_of_trace(timed_trace((0.0, [1, 2], 5)), divided)
    assert any("contexts that no ranks divide" in note for note in found.notes)


def test_nothing_shared_hits_nothing() -> None:
    found = requests_of_trace(timed_trace((0.0, [1, 2], 5), (9.0, [3, 4], 5)), TOY)
    assert found.hit_tokens == 0


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(InputError, match="made has no requests"):
        requests_of_trace(timed_trace(), TOY)


def test_models_that_are_not_simulated_are_refused() -> None:
    with pytest.raises(ConfigError, match="only sizes are known"):
        requests_of_trace(timed_trace((0.0, [1], 1)), Deployment(model="qwen3.5-4b", hardware="h200"))
