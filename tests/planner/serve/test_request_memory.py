"""Bytes of a request by hand, from the published sizes of Kimi K3."""

from __future__ import annotations

import pytest

from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.request_memory import begun_prompts, fits, request_memory
from milepost.planner.serve.speculation import Speculation
from milepost.planner.serve.steady import Arrangement
from milepost.shapes.names import find_shape
from milepost.sim.cost.hardware import find_hardware
from milepost.sim.cost.part_work import RankSizes
from tests.planner.serve.cases import arranged

STATE = 69 * (786_432 + 27_648)  # a rank's at TP8, of 69 KDA layers
TOKEN = 24 * 1152  # of 24 MLA layers in bf16, whole on each rank


def test_a_state_and_a_row_for_each_token_of_the_whole_length() -> None:
    asked = ServeQuestion(input_tokens=8192, output_tokens=1024)
    needed = request_memory(arranged(asked), asked)
    assert needed.state_bytes == STATE
    assert needed.kv_bytes == 9216 * TOKEN
    assert needed.request_bytes == STATE + 9216 * TOKEN
    assert needed.draft_weight_bytes == 0


def test_slots_are_states() -> None:
    asked = ServeQuestion(slots=5.0)
    assert request_memory(arranged(asked), asked).state_bytes == 5 * STATE


def test_context_parallel_ranks_share_the_rows_but_not_the_state() -> None:
    asked = ServeQuestion()
    sizes = RankSizes(tensor_parallel=8, context_parallel=4)
    needed = request_memory(
        Arrangement(find_shape("kimi-k3")[1], find_hardware("gb300"), sizes, asked), asked
    )
    assert needed.state_bytes == STATE
    assert needed.kv_bytes == 9216 * TOKEN / 4


def test_drafts_take_states_rows_and_weights() -> None:
    spec = Speculation(
        drafts=7, accepted_length=3.85, draft_parameters=3.56e9, draft_layers=5, states="snapshots"
    )
    asked = ServeQuestion(speculation=spec)
    needed = request_memory(arranged(asked), asked)
    # The window has 3 + 7 columns of 9,216 bytes; five layers more keep rows of the same width.
    assert needed.state_bytes == 8 * 69 * (786_432 + 10 * 9216)
    assert needed.kv_bytes == pytest.approx(9216 * TOKEN * 29 / 24)
    assert needed.draft_weight_bytes == pytest.approx(3.56e9 * 2 / 8)


def test_prompts_that_begin_need_room_too() -> None:
    assert begun_prompts(1, ServeQuestion(output_tokens=1024)) == 1
    assert begun_prompts(2048, ServeQuestion(output_tokens=1024)) == 2
    assert begun_prompts(100, ServeQuestion(output_tokens=10)) == 10


def test_more_sequences_never_fit_where_fewer_did_not() -> None:
    asked = ServeQuestion(output_tokens=10, input_tokens=50_000)
    arrangement = arranged(asked)
    told = [fits(arrangement, asked, 8192, batch) for batch in range(1, 200)]
    assert told == sorted(told, reverse=True)
    assert True in told
    assert False in told
