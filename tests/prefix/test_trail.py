"""One request's trail: where snapshots are due, each exactly once, however the tokens are cut into chunks."""

from __future__ import annotations

import itertools
import random

import pytest

from milepost.prefix.keys import KeyHasher
from milepost.prefix.nodes import Node
from milepost.prefix.plan import PlannedSnapshot, Reason, SnapshotPlan
from milepost.prefix.trail import Trail
from milepost.types import Request
from tests.prefix.shelf import SECRET

FAR = 1000


def trail_of(num_prompt: int = 20, *, output_reusable: bool = True) -> Trail:
    request = Request(
        request_id="a", prompt_token_ids=tuple(range(num_prompt)), output_reusable=output_reusable
    )
    return Trail(request, KeyHasher(4, SECRET).chain(), Node(b"", None, 0, ()), 4)


def following(plan: SnapshotPlan, start: int = 0, **options: bool) -> Trail:
    trail = trail_of(**options)
    trail.follow(plan, start)
    return trail


def points(*positions: int) -> tuple[PlannedSnapshot, ...]:
    return tuple(PlannedSnapshot(position, Reason.TURN) for position in positions)


def due(trail: Trail, *ends: int, start: int = 0) -> list[tuple[int, str]]:
    """What is due when the tokens are computed up to each of `ends` in turn."""
    found = []
    for begin, end in itertools.pairwise((start, *ends)):
        here = [(one.position, one.reason.value) for one in trail.due(begin, end)]
        assert all(begin < position <= end for position, _ in here)
        found += here
    return found


def test_without_a_plan_nothing_is_ever_due() -> None:
    trail = trail_of()
    assert trail.due(0, FAR) == []
    assert trail.next_due > FAR
    assert (trail.keep_last, trail.keep_output_ends) == (False, False)


def test_points_periods_and_spares_in_one_order() -> None:
    plan = SnapshotPlan(points=points(3, 12), periods=(5,), spare_period=4)
    expected = [
        (3, "turn"),
        (4, "spare"),
        (5, "period"),
        (8, "spare"),
        (10, "period"),
        (12, "turn"),
        (15, "period"),
        (16, "spare"),
        (20, "period"),
    ]
    assert due(following(plan), 20) == expected
    assert due(following(plan), *range(1, 21)) == expected


def test_a_place_that_several_ask_for_stands_for_the_best_reason() -> None:
    plan = SnapshotPlan(points=points(12), periods=(3, 6), spare_period=2)
    assert dict(due(following(plan), 12)) == {
        2: "spare",
        3: "period",
        4: "spare",
        6: "period",
        8: "spare",
        9: "period",
        10: "spare",
        12: "turn",
    }


@pytest.mark.parametrize("seed", range(20))
def test_everything_is_due_exactly_once_however_it_is_cut(seed: int) -> None:
    draws = random.Random(seed)
    places = sorted(draws.sample(range(1, 60), 5))
    period, spare, start = draws.randrange(1, 9), draws.randrange(0, 9), draws.randrange(0, 30)
    plan = SnapshotPlan(points=points(*places), periods=(period,), spare_period=spare)
    expected = {*places, *range(period, 61, period), *(range(spare, 61, spare) if spare else ())}
    cuts = sorted({60, *draws.sample(range(start + 1, 60), 7)})
    found = due(following(plan, start), *cuts, start=start)
    assert [position for position, _ in found] == sorted(one for one in expected if one > start)


def test_next_due_spares_every_other_step_the_question() -> None:
    trail = following(SnapshotPlan(points=points(7), periods=(10,)))
    assert trail.next_due == 7
    assert trail.due(0, 6) == []
    assert trail.next_due == 7
    trail.due(6, 7)
    assert trail.next_due == 10
    trail.due(7, 10)
    assert trail.next_due == 20


def test_a_life_that_begins_at_a_hit_plans_behind_it() -> None:
    trail = following(SnapshotPlan(points=points(4, 8, 9), periods=(4,)), start=8)
    assert due(trail, 16, start=8) == [(9, "turn"), (12, "period"), (16, "period")]
    trail.follow(SnapshotPlan(points=points(18)), 17)
    assert due(trail, 30, start=17) == [(18, "turn")], "a new plan takes the place of the old one"


def test_r98_an_output_that_does_not_come_back_is_not_planned_for() -> None:
    """R98: tokens that the next turn strips leave no snapshots behind the prompt."""
    plan = SnapshotPlan(points=points(18, 22), periods=(8,), spare_period=5)
    trail = following(plan, output_reusable=False)
    assert trail.planned_to == 20
    assert [position for position, _ in due(trail, 15, 19, 20, 21, 50)] == [5, 8, 10, 15, 16, 18, 20]
    assert trail.next_due > FAR
    assert trail.points_between(16, 60) == [18, 20]


def test_points_are_added_behind_what_is_computed() -> None:
    trail = following(SnapshotPlan(points=points(30)))
    trail.add_point(12, Reason.JUNCTION, 5)
    assert trail.next_due == 12
    trail.add_point(12, Reason.TURN, 5)
    trail.add_point(30, Reason.JUNCTION, 5)
    assert due(trail, 40, start=5) == [(12, "junction"), (30, "turn")], "the first to ask is asked for"


def test_points_between_names_all_places_but_of_each_period_the_last() -> None:
    trail = following(SnapshotPlan(points=points(3, 9), periods=(4,), spare_period=5))
    assert trail.points_between(2, 14) == [3, 9, 10, 12]
    assert trail.points_between(9, 11) == [10]
    assert trail.points_between(12, 14) == []
