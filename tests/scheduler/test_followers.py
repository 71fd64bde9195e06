"""Requests that wait for another one's snapshot: who follows whom, and everything that wakes them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from milepost.errors import InvariantError
from milepost.prefix.cache import PrefixCache
from milepost.prefix.plan import PlannedSnapshot, Reason, SnapshotPlan
from milepost.scheduler.followers import Followers, shared_tokens
from milepost.scheduler.sequence import Sequence
from milepost.types import Batch, FinishReason
from tests.scheduler.harness import World, cache_config, prompt_of, request
from tests.scheduler.test_cached_lives import standing, stats, world_of

PROMPT = prompt_of(20)
UNIT = 4


class Pair:
    """Sequences over one cache that no scheduler moves."""

    def __init__(self) -> None:
        world = World(cache=cache_config(match_unit=UNIT))
        assert world.cache is not None
        self.cache: PrefixCache = world.cache
        self.arrivals = 0

    def sequence(self, tokens: tuple[int, ...], *points: int, salt: str = "", computed: int = 0) -> Sequence:
        one = request(f"s{self.arrivals}", tokens, 1, salt=salt)
        made = Sequence(one, arrival=self.arrivals, length_limit=1000, stop_token_ids=())
        self.arrivals += 1
        made.trail = self.cache.open(one)
        made.num_computed = computed
        self.cache.look_up(made.trail, made.tokens)
        planned = tuple(PlannedSnapshot(point, Reason.TURN) for point in points)
        made.trail.follow(SnapshotPlan(points=planned), computed)
        return made

    def follows(self, followers: Followers, sequence: Sequence, *leaders: Sequence) -> bool:
        assert sequence.trail is not None
        return followers.follow(sequence, self.cache.look_up(sequence.trail, sequence.tokens), leaders)


def planned(sequence: Sequence) -> list[int]:
    assert sequence.trail is not None
    return sequence.trail.points_between(0, 1000)


@pytest.mark.parametrize("common", [0, 1, 3, 4, 5, 7, 8, 12, 19, 20])
def test_shared_tokens_are_counted_to_the_token(common: int) -> None:
    pair = Pair()
    one = pair.sequence(PROMPT)
    other = pair.sequence((*PROMPT[:common], *(1 - token for token in PROMPT[common:]), 1))
    assert shared_tokens(one, other) == shared_tokens(other, one) == common
    longer = pair.sequence((*PROMPT, 1, 0))
    assert shared_tokens(one, longer) == 20


def test_different_salts_share_nothing() -> None:
    pair = Pair()
    assert shared_tokens(pair.sequence(PROMPT), pair.sequence(PROMPT, salt="a")) == 0


def test_without_a_cache_nothing_is_shared() -> None:
    bare = Sequence(request("a", PROMPT), arrival=0, length_limit=30, stop_token_ids=())
    assert shared_tokens(bare, Pair().sequence(PROMPT)) == 0


def test_one_follows_the_leader_whose_snapshot_is_deepest() -> None:
    pair, followers = Pair(), Followers(UNIT)
    near, far = pair.sequence((*PROMPT[:10], 1 - PROMPT[10], *PROMPT[11:]), 9), pair.sequence(PROMPT, 18)
    late = pair.sequence(PROMPT)
    assert pair.follows(followers, late, near, far)
    assert late in followers
    assert len(followers) == 1
    near.num_computed = 20
    far.num_computed = 17
    assert followers.passed(near) == []
    assert followers.passed(far) == []
    far.num_computed = 18
    assert followers.passed(far) == [late]
    assert late not in followers
    assert followers.passed(far) == followers.stopped(far) == []


def test_a_junction_is_asked_for_where_nothing_near_enough_is_planned() -> None:
    pair, followers = Pair(), Followers(UNIT)
    leader = pair.sequence(PROMPT, 5)
    fork = pair.sequence((*PROMPT[:14], 1 - PROMPT[14], 1, 1))
    assert pair.follows(followers, fork, leader)
    assert planned(leader) == [5, 14]
    near = pair.sequence((*PROMPT[:8], 1 - PROMPT[8], 1, 1))
    assert pair.follows(followers, near, leader)
    assert planned(leader) == [5, 14], "5 is less than a unit before the fork at 8"
    leader.num_computed = 6
    assert followers.passed(leader) == [near]


def test_what_saves_less_than_a_unit_is_not_waited_for() -> None:
    pair, followers = Pair(), Followers(UNIT)
    leader = pair.sequence(PROMPT, 3, 20, computed=0)
    short = pair.sequence((*PROMPT[:3], 1 - PROMPT[3]))
    assert not pair.follows(followers, short, leader)
    leader.num_computed = 20
    assert not pair.follows(followers, pair.sequence(PROMPT), leader), "it has passed"
    assert pair.cache.open(short.request) is not None
    assert len(followers) == 0


def test_nobody_follows_a_private_life_or_asks_behind_what_is_planned() -> None:
    pair, followers = Pair(), Followers(UNIT)
    private, stripped = pair.sequence(PROMPT), pair.sequence(PROMPT)
    assert private.trail is not None
    assert stripped.trail is not None
    private.trail.private = True
    stripped.trail.planned_to = 10
    late = pair.sequence((*PROMPT, 1))
    assert not pair.follows(followers, late, private, stripped)


def test_one_leader_leaves_so_many_junctions_and_no_more() -> None:
    pair, followers = Pair(), Followers(1)
    leader = pair.sequence(prompt_of(60))
    for position in range(2, 59):
        prompt = prompt_of(60)
        fork = pair.sequence((*prompt[:position], 1 - prompt[position], 1))
        pair.follows(followers, fork, leader)
    assert len(planned(leader)) == 16
    assert len(followers.stopped(leader)) == len(range(2, 59)), "the others wait for what there is"
    fork = pair.sequence((*prompt_of(60)[:30], 1 - prompt_of(60)[30]))
    assert pair.follows(followers, fork, leader), "a new life may be asked anew"


def test_a_follower_that_ends_is_forgotten() -> None:
    pair, followers = Pair(), Followers(UNIT)
    leader, late = pair.sequence(PROMPT, 18), pair.sequence(PROMPT)
    pair.follows(followers, late, leader)
    followers.remove(late)
    assert followers.stopped(leader) == []
    with pytest.raises(KeyError):
        followers.remove(late)


def burst() -> tuple[World, Batch]:
    """A step that computes the leader's prompt, and two that wait for what it will leave."""
    world = world_of("prompt-tail", token_budget=24)
    fork = (*PROMPT[:15], 1 - PROMPT[15])
    world.add(request("a", PROMPT, 3), request("b", PROMPT, 3), request("c", fork, 3))
    batch = world.schedule()
    assert batch is not None
    assert [row.request_id for row in batch.rows] == ["a"]
    assert [order.position for order in batch.rows[0].snapshots] == [15, 19]
    assert stats(world).waits == 2
    return world, batch


def finish(world: World) -> dict[str, int]:
    """Run to the end; what each one hit."""
    world.run()
    for request_id, update in world.finished.items():
        if update.finish_reason is FinishReason.LENGTH:
            assert world.output[request_id] == world.expected(request_id, 3)
    return {request_id: update.usage.cached_tokens for request_id, update in world.finished.items()}


def test_r95_a_burst_is_computed_once() -> None:
    """R95: equal cold prompts at once, and one that parts from them."""
    world, batch = burst()
    told = world.scheduler.stats()
    assert (told.running, told.waiting) == (1, 2)
    world.finish_step(batch)
    assert finish(world) == {"a": 0, "b": 19, "c": 15}
    # Each of the others computes one token of its prompt.
    assert world.scheduler.stats().computed_tokens == (20 + 2) + (1 + 2) + (1 + 2)
    assert stats(world).snapshots_by_reason["junction"] == 1
    assert standing(world)[15] == "junction"


def test_without_waiting_everybody_computes_everything() -> None:
    world = World(
        token_budget=24, cache=cache_config(match_unit=4, snapshot_policy="none", wait_for_leaders=False)
    )
    world.add(request("a", PROMPT, 3), request("b", PROMPT, 3))
    assert finish(world) == {"a": 0, "b": 0}
    assert stats(world).waits == 0


def abort_leader(world: World) -> None:
    world.abort("a")


def fail_leader(world: World) -> None:
    world.executor.fail_request("a")


def finish_leader(world: World) -> None:
    world.record(world.scheduler.finish("a", FinishReason.STOP))


def lose_snapshots(world: World) -> None:
    # One of the two that the leader leaves is not finite.
    world.executor.fail_snapshot("a")


@pytest.mark.parametrize(
    ("stop", "hits"),
    [(abort_leader, (0, 15)), (fail_leader, (0, 15)), (finish_leader, (0, 15)), (lose_snapshots, (19, 0))],
)
def test_who_waits_goes_on_when_the_leader_leaves_nothing(
    stop: Callable[[World], None], hits: tuple[int, int]
) -> None:
    world, batch = burst()
    stop(world)
    world.check()
    world.finish_step(batch)
    following = world.schedule()
    assert following is not None
    assert "b" in {row.request_id for row in following.rows}
    world.finish_step(following)
    cached = finish(world)
    assert (cached["b"], cached["c"]) == hits


def test_an_abort_of_who_waits_leaves_the_leader_alone() -> None:
    world, batch = burst()
    world.abort("b")
    world.finish_step(batch)
    assert finish(world) == {"a": 0, "b": 0, "c": 15}


def test_a_reset_does_not_strand_who_waits() -> None:
    world, batch = burst()
    world.scheduler.reset_cache()
    world.finish_step(batch)
    assert finish(world) == {"a": 0, "b": 19, "c": 15}


def test_the_engine_s_end_forgets_who_waits() -> None:
    world, _ = burst()
    world.scheduler.abandon()
    assert not world.scheduler.has_work
    assert world.scheduler.stats().waiting == 0
    world.scheduler.check()


def test_a_roster_that_lost_somebody_is_found() -> None:
    world, _ = burst()
    world.scheduler._roster.followers.remove(world.scheduler._roster.alive["b"])
    with pytest.raises(InvariantError, match="stands nowhere"):
        world.scheduler.check()


def test_requests_follow_although_the_leaders_leave_them_no_budget() -> None:
    """Five equal beginnings, three tokens a step, and a policy that plans nothing before the end."""
    world = World(num_pages=400, token_budget=3, max_num_seqs=8, cache=cache_config(snapshot_policy="last"))
    shared = prompt_of(40)
    world.add(*(request(str(i), (*shared, i % 2, i // 2 % 2, i // 4), 1) for i in range(5)))
    world.run()
    hits = [world.finished[str(i)].usage.cached_tokens for i in range(5)]
    assert hits[0] == 0
    assert min(hits[1:]) >= len(shared)
