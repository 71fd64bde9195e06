"""Where each snapshot policy leaves snapshots."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.prefix.plan import PlannedSnapshot, PromptView, Reason, SnapshotPlan
from milepost.prefix.policies import parse_policy
from milepost.prefix.policies.combined import Combined
from milepost.prefix.policies.parsing import POLICY_NAMES
from milepost.prefix.policies.places import REASONS_BY_WORTH
from tests.prefix.views import places, view_of, views

SINGLE = ["none", "every(7)", "every(100)", "last", "prompt-tail", "turns", "branch", "budget(snapshots=3)"]
SINGLE += ["adaptive", "adaptive(spare=0)"]

policy_texts = st.lists(st.sampled_from(SINGLE[1:]), min_size=1, max_size=4, unique=True).map("+".join)


def plan_of(text: str, view: PromptView) -> SnapshotPlan:
    return parse_policy(text).plan(view)


def test_none_leaves_nothing() -> None:
    assert plan_of("none", view_of(100, matched=50, message_ends=(10, 20))) == SnapshotPlan()


def test_every_is_a_period_and_no_list() -> None:
    assert plan_of("every(64)", view_of(1_000_000)) == SnapshotPlan(periods=(64,))


def test_last_is_the_last_computed_token() -> None:
    assert plan_of("last", view_of(100, message_ends=(10,))) == SnapshotPlan(last=True)


def test_prompt_tail_is_where_an_identical_resend_looks() -> None:
    """R60, R61: a hit is at most N - 1, so a snapshot at N would never be hit by the same prompt."""
    assert places(plan_of("prompt-tail", view_of(100))) == {99: "prompt_tail"}
    assert places(plan_of("prompt-tail", view_of(100, hit=98))) == {99: "prompt_tail"}
    assert not places(plan_of("prompt-tail", view_of(100, hit=99)))
    assert not places(plan_of("prompt-tail", view_of(1)))


def test_prompt_tail_of_a_resumed_request_is_still_that_of_its_prompt() -> None:
    assert places(plan_of("prompt-tail", view_of(120, num_prompt=100))) == {99: "prompt_tail"}
    assert not places(plan_of("prompt-tail", view_of(120, num_prompt=100, hit=110)))


def test_turns_are_the_message_ends_that_are_computed() -> None:
    """R23: an end before the generation suffix, which the next turn does not repeat."""
    plan = plan_of("turns", view_of(100, hit=40, message_ends=(10, 40, 41, 97)))
    assert places(plan) == {41: "turn", 97: "turn"}
    assert plan.output_ends
    assert not plan.last


def test_turns_keep_no_end_of_an_output_that_will_be_stripped() -> None:
    """R98."""
    plan = plan_of("turns", view_of(100, message_ends=(97,), output_reusable=False))
    assert places(plan) == {97: "turn"}
    assert not plan.output_ends


def test_branch_is_where_the_prompt_leaves_what_is_cached() -> None:
    """R01, R03: the second request of a group leaves the state at the junction."""
    plan = plan_of("branch", view_of(1386 + 560, hit=0, matched=560))
    assert places(plan) == {560: "branch"}
    assert plan.last


def test_branch_leaves_no_point_where_everything_cached_was_hit() -> None:
    assert plan_of("branch", view_of(100, hit=48, matched=48)) == SnapshotPlan(last=True)


def test_branch_of_a_prompt_that_is_cached_as_a_whole_lies_before_its_last_token() -> None:
    """R04: the same prompt again and again; at N the snapshot would never be used."""
    assert places(plan_of("branch", view_of(64, matched=64))) == {63: "branch"}
    assert not places(plan_of("branch", view_of(64, hit=63, matched=64)))


def test_adaptive_foresees_resend_next_turn_branch_and_continuation() -> None:
    plan = plan_of("adaptive", view_of(1000, hit=100, matched=512, message_ends=(80, 600, 996)))
    assert places(plan) == {512: "branch", 600: "turn", 996: "turn", 999: "prompt_tail"}
    assert (plan.spare_period, plan.output_ends, plan.last, plan.periods) == (64, True, True, ())


def test_adaptive_keeps_nothing_of_an_output_that_will_be_stripped() -> None:
    """R98."""
    plan = plan_of("adaptive", view_of(1000, message_ends=(996,), output_reusable=False))
    assert places(plan) == {996: "turn", 999: "prompt_tail"}
    assert not plan.output_ends
    assert not plan.last


@pytest.mark.parametrize("spare", [0, 1, 256])
def test_adaptive_takes_another_spare_period(spare: int) -> None:
    assert plan_of(f"adaptive(spare={spare})", view_of(10)).spare_period == spare


def test_adaptive_is_of_use_without_messages() -> None:
    assert places(plan_of("adaptive", view_of(1000, matched=512))) == {512: "branch", 999: "prompt_tail"}


def test_a_combination_leaves_what_each_part_leaves() -> None:
    view = view_of(1000, hit=100, matched=512, message_ends=(600, 996))
    plan = plan_of("turns+branch+every(8192)", view)
    assert places(plan) == {512: "branch", 600: "turn", 996: "turn"}
    assert (plan.periods, plan.last, plan.output_ends, plan.spare_period) == ((8192,), True, True, 0)


def test_a_position_that_several_want_keeps_the_reason_of_most_worth() -> None:
    view = view_of(1000, matched=999, message_ends=(999,))
    assert places(plan_of("prompt-tail+turns", view)) == {999: "turn"}
    assert places(plan_of("prompt-tail+turns+branch", view)) == {999: "branch"}
    assert places(plan_of("branch+turns+prompt-tail", view)) == {999: "branch"}
    assert places(plan_of("budget(snapshots=1)+prompt-tail", view_of(2, match_unit=1))) == {1: "prompt_tail"}


def test_every_reason_has_its_rank() -> None:
    assert set(REASONS_BY_WORTH) == set(Reason)
    assert len(REASONS_BY_WORTH) == len(Reason)


def test_a_period_that_is_a_multiple_of_another_adds_nothing() -> None:
    view = view_of(10)
    assert plan_of("every(8192)+every(64)+every(100)", view).periods == (64, 100)


def test_the_denser_of_two_spare_periods_is_taken() -> None:
    view = view_of(10)
    assert plan_of("adaptive(spare=256)+adaptive(spare=32)+adaptive(spare=0)", view).spare_period == 32


class Witness:
    """A policy that only notes what it is shown."""

    name = "witness"

    def __init__(self) -> None:
        self.seen: list[PromptView] = []

    def plan(self, view: PromptView) -> SnapshotPlan:
        return SnapshotPlan()

    def observe(self, view: PromptView) -> None:
        self.seen.append(view)


def test_every_part_of_a_combination_learns() -> None:
    first, second = Witness(), Witness()
    combined = Combined([first, second])
    view = view_of(10)
    combined.observe(view)
    assert first.seen == second.seen == [view]
    assert combined.name == "witness+witness"


@given(text=policy_texts, view=views(), earlier=st.lists(views(), max_size=40))
def test_points_are_in_range_in_order_and_each_once(
    text: str, view: PromptView, earlier: list[PromptView]
) -> None:
    policy, same = parse_policy(text), parse_policy(text)
    for other in earlier:
        policy.observe(other)
        same.observe(other)
        same.plan(other)  # asking changes nothing
    plan = policy.plan(view)
    positions = [point.position for point in plan.points]
    assert positions == sorted(set(positions))
    assert all(view.hit < position <= view.num_tokens for position in positions)
    assert plan == policy.plan(view) == same.plan(view)


@given(text=policy_texts, view=views(), seed=st.integers(0, 9))
def test_the_order_of_a_combination_does_not_matter(text: str, view: PromptView, seed: int) -> None:
    parts = text.split("+")
    random.Random(seed).shuffle(parts)
    assert plan_of("+".join(parts), view) == plan_of(text, view)


@given(text=policy_texts, view=views())
def test_a_combination_is_the_union_of_its_parts(text: str, view: PromptView) -> None:
    whole = plan_of(text, view)
    parts = [plan_of(part, view) for part in text.split("+")]
    wanted = {point.position for part in parts for point in part.points}
    assert {point.position for point in whole.points} == wanted
    assert set(whole.points) <= {point for part in parts for point in part.points}
    assert whole.last == any(part.last for part in parts)
    every = {n for part in parts for period in part.periods for n in range(0, 1000, period)}
    assert {n for period in whole.periods for n in range(0, 1000, period)} == every


@pytest.mark.parametrize("name", POLICY_NAMES)
def test_a_plan_stays_small_however_long_the_prompt(name: str) -> None:
    text = {"every": "every(64)", "budget": "budget(snapshots=8)"}.get(name, name)
    plan = plan_of(text, view_of(1_000_000, matched=500_000, message_ends=(10, 999_990)))
    assert len(plan.points) <= 8


def test_plans_are_equal_by_value() -> None:
    assert plan_of("prompt-tail", view_of(9)).points == (PlannedSnapshot(8, Reason.PROMPT_TAIL),)
