"""The small parts of a run: places at whole blocks, the pool without a limit, counts by depth."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.memory.pool import PagePool
from milepost.prefix import nodes
from milepost.prefix.eviction import parse_eviction
from milepost.prefix.plan import PromptView, Reason
from milepost.prefix.policies import parse_policy
from milepost.sim.replay.blockwise import Blockwise
from milepost.sim.replay.endless_pool import EndlessPool
from milepost.sim.replay.watch import DepthCounts, WatchedEviction, depth_edges
from tests.prefix.test_eviction import NOW, Snapshot


def view(num_prompt: int, hit: int = 0, matched: int = 0) -> PromptView:
    return PromptView(
        num_tokens=num_prompt,
        num_prompt=num_prompt,
        hit=hit,
        matched=max(hit, matched),
        message_ends=(num_prompt,),
        match_unit=64,
        output_reusable=False,
    )


def places(policy: str, asked: PromptView) -> list[tuple[int, Reason]]:
    plan = Blockwise(parse_policy(policy), 64).plan(asked)
    assert not plan.last
    assert not plan.output_ends
    return [(point.position, point.reason) for point in plan.points]


def test_places_move_down_to_whole_blocks() -> None:
    assert places("turns", view(200)) == [(192, Reason.TURN)]
    assert places("turns", view(192)) == [(192, Reason.TURN)]
    assert places("prompt-tail", view(192)) == [(128, Reason.PROMPT_TAIL)]
    assert places("last", view(200)) == [(192, Reason.LAST)]
    assert places("branch", view(300, matched=150)) == [(128, Reason.BRANCH), (256, Reason.LAST)]


def test_of_places_that_fall_together_the_deepest_names_the_reason() -> None:
    assert places("adaptive", view(200)) == [(192, Reason.TURN)]
    assert places("branch+turns", view(200, matched=199)) == [(192, Reason.TURN)]


def test_a_place_that_falls_to_the_hit_or_to_nothing_is_left_out() -> None:
    assert places("turns", view(200, hit=192)) == []
    assert places("turns", view(63)) == []


def test_periods_are_whole_blocks() -> None:
    plan = Blockwise(parse_policy("every(100)+every(128)+every(290)+adaptive(spare=1)"), 64).plan(view(1000))
    assert plan.periods == (128, 320)
    assert plan.spare_period == 64
    assert Blockwise(parse_policy("adaptive(spare=0)"), 64).plan(view(1000)).spare_period == 0


@given(st.lists(st.integers(1, 9000), min_size=1, max_size=12))
def test_an_endless_pool_gives_what_is_asked_and_keeps_its_books(counts: list[int]) -> None:
    pool = EndlessPool()
    lease = pool.open("one")
    given_out: list[int] = []
    for count in counts:
        pages = pool.reserve(lease, count)
        assert pages is not None
        assert len(pages) == count
        given_out += pages
    assert len(set(given_out)) == len(given_out)
    assert 0 not in given_out
    pool.release(lease, given_out[::2])
    again = pool.reserve(lease, len(given_out[::2]))
    assert again is not None
    assert set(again) == set(given_out[::2])  # made anew only when there is need


@given(st.lists(st.integers(0, 3000), max_size=12))
def test_a_pool_that_grows_conserves_its_pages(wanted: list[int]) -> None:
    pool = PagePool(8)
    lease = pool.open("one")
    held = 0
    for count in wanted:
        pool.ensure_free(count)
        assert pool.num_free >= count
        assert pool.reserve(lease, count) is not None
        held += count
        pool.check()
    counts = pool.counts()
    assert (counts.leased, counts.total) == (held, pool.num_pages)
    assert pool.num_pages <= max(8, 4 * (held + 8))


@pytest.mark.parametrize("longest", [1, 256, 257, 100_000, 1 << 20])
def test_edges_reach_the_longest_and_ascend(longest: int) -> None:
    edges = depth_edges(longest)
    assert edges[-1] >= longest
    assert list(edges) == sorted(set(edges))
    assert len(edges) < 30


def test_depths_are_counted_up_to_their_edge() -> None:
    counts = DepthCounts((256, 384, 512))
    for position in (1, 256, 257, 512, 9999):
        counts.add(position)
    assert counts.counts == [2, 1, 2]


def test_a_watched_policy_decides_as_it_would_alone() -> None:
    alone, watched = parse_eviction("value"), WatchedEviction(parse_eviction("value"), (256, 384))
    assert watched.name == alone.name
    for position in (100, 300, 300):
        candidate = Snapshot(position=position)
        for policy in (alone, watched):
            policy.written(candidate, NOW)
            policy.consumed(candidate, NOW)
        assert watched.worth(candidate, NOW) == alone.worth(candidate, NOW)
    watched.consumed(Snapshot(position=300, hits=1), NOW)
    assert watched.written_at.counts == [1, 2]
    assert watched.used_at.counts == [1, 2]


def test_a_spare_snapshot_that_gets_a_better_reason_is_counted_once() -> None:
    watched = WatchedEviction(parse_eviction("value"), (256, 384))
    snapshot = nodes.Snapshot(nodes.Node(b"key", None, 100, ()), (), Reason.SPARE, NOW)
    watched.written(snapshot, NOW)
    snapshot.reason = Reason.TURN
    watched.written(snapshot, NOW)
    assert watched.written_at.counts == [1, 0]


def test_what_was_written_before_the_count_begins_is_not_counted_as_used() -> None:
    watched = WatchedEviction(parse_eviction("lru"), (256, 384))
    old, new = Snapshot(position=100), Snapshot(position=300)
    watched.written(old, NOW)
    watched.begin([old])
    watched.written(new, NOW)
    watched.consumed(old, NOW)
    watched.consumed(new, NOW)
    assert watched.written_at.counts == watched.used_at.counts == [0, 1]
