"""Requests with a common beginning: computed once, whatever the step, the policy and the turns allow."""

from __future__ import annotations

import pytest

from milepost.prefix.reports import CacheStats
from tests.scheduler.harness import World, cache_config, prompt_of, request

COMMON = prompt_of(103, 1)


def burst(world: World, count: int = 4) -> None:
    """Prompts that part behind `COMMON`, where no unit ends."""
    for number in range(count):
        bits = f"{number:04b}"
        world.add(request(f"r{number}", (*COMMON, *map(int, bits), *prompt_of(150, number)), 2))


def stats_of(world: World) -> CacheStats:
    stats = world.scheduler.cache_stats()
    assert stats is not None
    return stats


@pytest.mark.parametrize("policy", ["last", "prompt-tail", "every(64)", "adaptive"])
@pytest.mark.parametrize("token_budget", [16, 64, 400])
@pytest.mark.parametrize("max_num_seqs", [1, 8])
def test_a_burst_is_computed_once(policy: str, token_budget: int, max_num_seqs: int) -> None:
    world = World(
        num_pages=1000,
        token_budget=token_budget,
        max_num_seqs=max_num_seqs,
        cache=cache_config(match_unit=4, snapshot_policy=policy),
    )
    burst(world)
    world.run()
    assert stats_of(world).hit_tokens >= 3 * len(COMMON)
    assert all(world.output[name] == world.expected(name, 2) for name in ("r0", "r1", "r2", "r3"))


def test_who_never_shares_enough_waits_for_its_turn_only() -> None:
    world = World(num_pages=1000, token_budget=16, cache=cache_config(match_unit=4, snapshot_policy="last"))
    world.add(request("first", COMMON, 2), request("second", prompt_of(60, 2), 2))
    world.run()
    assert stats_of(world).waits == 0


@pytest.mark.parametrize(("priority", "waits"), [(0, 0), (5, 1), (6, 1)])
def test_nobody_follows_a_request_of_lower_priority(priority: int, waits: int) -> None:
    """Those in between would go before the leader again and again, and so before who follows it."""
    world = World(num_pages=1000, token_budget=16, cache=cache_config(match_unit=4, snapshot_policy="last"))
    world.add(request("leader", COMMON, 2, priority=5))
    world.step()
    world.add(request("follower", (*COMMON[:90], 1, 0, 1), 2, priority=priority))
    world.step()
    assert stats_of(world).waits == waits
    world.run()
    assert world.output["follower"] == world.expected("follower", 2)
