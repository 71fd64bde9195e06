"""Drafts: tokens won, and what states and the draft model take, against published figures and by hand."""

from __future__ import annotations

import math

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.speculation import (
    DRAFT_STATES,
    DraftStates,
    Speculation,
    known_draft,
    replay_token_bytes,
    state_bytes_of,
)
from milepost.shapes.names import find_shape
from milepost.sim.cost.part_work import RankSizes
from tests.planner.serve.cases import arranged

K3 = find_shape("kimi-k3")[1]
EIGHT = RankSizes(tensor_parallel=8)


def test_snapshots_take_what_atom_reports() -> None:
    """ATOM: 3,072 slots, 384 sequences of 1 + 7, take 173.44 GB (of 2^30) a GPU at TP8."""
    states = state_bytes_of(K3, EIGHT, 7, "snapshots")
    assert states.running_bytes == 8 * states.slot_bytes
    assert round(384 * states.running_bytes / 2**30, 2) == 173.44


def test_without_drafts_a_state_is_what_the_model_says() -> None:
    states = state_bytes_of(K3, EIGHT)
    assert states.slot_bytes == states.running_bytes == 69 * (786_432 + 27_648)
    assert states.step_extra_bytes == 0


def test_a_replay_keeps_some_kilobytes_a_head_in_place_of_a_state() -> None:
    # vLLM's RecoverSSM keeps a correction (128) and raw key and gate (2 x 128) of each head in bf16.
    assert replay_token_bytes(K3, RankSizes()) == 69 * 96 * (128 + 2 * 128) * 2
    slot = state_bytes_of(K3, EIGHT, 7, "replay").slot_bytes
    kept = 8 * replay_token_bytes(K3, EIGHT)
    replay, fused = (state_bytes_of(K3, EIGHT, 7, states) for states in ("replay", "fused"))
    assert replay.running_bytes == fused.running_bytes == slot + kept
    assert replay.step_extra_bytes - fused.step_extra_bytes == slot
    assert fused.step_extra_bytes == 2 * kept


@pytest.mark.parametrize("states", DRAFT_STATES)
def test_more_drafts_take_more_of_everything(states: DraftStates) -> None:
    few, many = state_bytes_of(K3, EIGHT, 2, states), state_bytes_of(K3, EIGHT, 5, states)
    assert few.slot_bytes < many.slot_bytes
    assert few.running_bytes < many.running_bytes
    assert few.step_extra_bytes < many.step_extra_bytes


def test_a_model_without_states_keeps_none() -> None:
    states = state_bytes_of(find_shape("deepseek-v3")[1], EIGHT, 3, "snapshots")
    assert (states.slot_bytes, states.running_bytes, states.step_extra_bytes) == (0, 0, 0)


def test_shares_of_positions_add_up() -> None:
    # ATOM's K = 2: 0.93 and 0.81 a position, 2.75 tokens of 3.
    spec = Speculation.of_positions((0.93, 0.81), states="snapshots")
    assert spec.drafts == 2
    assert spec.accepted_length == pytest.approx(2.74)
    assert spec.verified == 3
    assert spec.states == "snapshots"


def test_accepted_tokens_divide_the_time_of_a_step() -> None:
    plain = arranged(ServeQuestion()).point(1, 8192)
    spec = Speculation(drafts=7, accepted_length=3.85, draft_parameters=3.56e9, draft_layers=5)
    drafted = arranged(ServeQuestion(speculation=spec)).point(1, 8192)
    assert plain is not None
    assert drafted is not None
    # A longer step, since more experts are touched and a draft model runs; but 3.85 tokens out of each.
    assert plain.mean_step_seconds < drafted.mean_step_seconds < 2 * plain.mean_step_seconds
    assert drafted.tpot_seconds == pytest.approx(drafted.mean_step_seconds / 3.85)
    assert drafted.tokens_per_second_per_user > 1.9 * plain.tokens_per_second_per_user


def test_nothing_accepted_is_slower_than_no_drafts() -> None:
    plain = arranged(ServeQuestion()).point(4, 8192)
    drafted = arranged(ServeQuestion(speculation=Speculation(drafts=7, accepted_length=1.0))).point(4, 8192)
    assert plain is not None
    assert drafted is not None
    assert drafted.tpot_seconds > plain.tpot_seconds


def test_a_draft_model_of_one_pass_a_token_takes_longer_than_one_of_one_pass() -> None:
    once = Speculation(drafts=7, accepted_length=3.85, draft_parameters=3.56e9, draft_layers=5)
    often = msgspec.structs.replace(once, draft_passes=7)
    first, second = (arranged(ServeQuestion(speculation=spec)) for spec in (once, often))
    assert second.draft_model_seconds(1) == pytest.approx(7 * first.draft_model_seconds(1))
    free = msgspec.structs.replace(once, draft_parameters=0.0)
    assert arranged(ServeQuestion(speculation=free)).draft_model_seconds(1) == 0


def test_the_published_draft_of_k3_is_known() -> None:
    assert known_draft("kimi-k3") == (3.56e9, 5)
    assert known_draft("kimi-linear") == (0.0, 0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"drafts": 0}, "drafts must be 1 to 64. Given: 0"),
        ({"drafts": 2, "accepted_length": 3.5}, "accepted_length must be 1 to 3, .* Given: 3.5"),
        ({"accepted_length": 0.5}, "accepted_length must be 1 to 4"),
        ({"accepted_length": math.nan}, "accepted_length must be 1 to 4"),
        ({"draft_parameters": -1.0}, "draft_parameters must be at least 0"),
        ({"draft_parameters": math.inf}, "draft_parameters must be at least 0"),
        ({"draft_parameters": 1e300}, r"at most 1e\+15"),
        ({"draft_layers": 10**30}, "at most 10000"),
        ({"draft_layers": -1}, "draft_layers must be at least 0"),
        ({"draft_passes": 4}, "draft_passes must be 1 to 3"),
        ({"states": "snapshot"}, "states must be one of .* Did you mean 'snapshots'"),
    ],
)
def test_nonsense_is_one_line(fields: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Speculation(**{"drafts": 3, "accepted_length": 2.0, **fields})  # type: ignore[arg-type]


@pytest.mark.parametrize("shares", [(), (1.1,), (-0.1,), (0.5, 0.6), (math.nan,)])
def test_shares_that_cannot_be_are_refused(shares: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="Given: "):
        Speculation.of_positions(shares)
