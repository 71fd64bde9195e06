"""Requests that share a prefix, interrupted at every point: exhaustively, alone and in pairs.

A point lies before every `schedule` and between it and its `update`. Whatever ends, fails or is
forgotten there, the others draw what they would have drawn, and in the end nobody owns anything.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

import pytest

from milepost.errors import InvariantError
from milepost.types import FinishReason, Request
from tests.scheduler.harness import TierOptions, World, cache_config, prompt_of, request

Action = tuple[str, str]  # what happens, and to whom
Scenario = Callable[[], tuple[World, dict[int, Request]]]

SHARED = prompt_of(9)


def staggered() -> tuple[World, dict[int, Request]]:
    """A leader, one that goes on behind its prompt, one that forks inside a block; each hits."""
    world = World(num_pages=40, block_size=4, token_budget=4, cache=cache_config(match_unit=3))
    arrivals = {
        0: request("a", SHARED, 3, message_ends=[5]),
        6: request("b", (*SHARED, 0, 1), 3),
        9: request("c", (*SHARED[:6], 1 - SHARED[6]), 2),
    }
    return world, arrivals


def burst() -> tuple[World, dict[int, Request]]:
    """Three at once, of which two follow the first, in a pool that does not hold them all."""
    world = World(num_pages=12, block_size=3, token_budget=5, cache=cache_config(match_unit=2))
    prompts = {"a": SHARED, "b": (*SHARED, 1), "c": (*SHARED[:7], 1 - SHARED[7])}
    return world, {i: request(name, prompt, 3) for i, (name, prompt) in enumerate(prompts.items())}


def tiered() -> tuple[World, dict[int, Request]]:
    """One is evicted to the host by another one, and loaded back for the third, which takes three steps."""
    world = World(
        num_pages=9,
        block_size=4,
        token_budget=8,
        cache=cache_config(match_unit=4),
        tiers=TierOptions(host_pages=20, steps_of=lambda _: 3),
    )
    arrivals = {
        0: request("a", SHARED, 2),
        8: request("b", prompt_of(13, 1), 2),
        14: request("c", (*SHARED, 0), 2),
    }
    return world, arrivals


SCENARIOS: dict[str, Scenario] = {"staggered": staggered, "burst": burst, "tiered": tiered}
ACTIONS: list[Action] = [
    ("reset", ""),
    ("break next", ""),
    *itertools.product(["abort", "finish", "fail", "fail snapshot", "break"], ["a", "b", "c"]),
]


def play(scenario: Scenario, interruptions: Sequence[tuple[int, Action]]) -> tuple[World, int]:
    """Play a scenario to its end; returns its world and the number of points there were."""
    world, arrivals = scenario()
    failing: set[str] = set()
    for point in itertools.count():
        if point in arrivals:
            world.add(arrivals.pop(point))
        for at, action in interruptions:
            if at == point:
                interrupt(world, action, failing)
        if point % 2 == 0:
            batch = world.schedule()
        elif batch is not None:
            world.finish_step(batch)
        elif not arrivals:
            break
    world.run()
    for request_id, update in world.finished.items():
        assert world.output[request_id] == world.expected(request_id, len(world.output[request_id]))
        if update.finish_reason is FinishReason.ERROR:
            assert request_id in failing | world.failed_alone()
    return world, point


def interrupt(world: World, action: Action, failing: set[str]) -> None:
    kind, request_id = action
    if kind == "reset":
        world.scheduler.reset_cache()
    elif kind == "break next":
        world.executor.break_next_step()
    elif request_id not in world.requests or request_id in world.finished:
        return
    elif kind == "abort":
        world.abort(request_id)
    elif kind == "finish":
        world.record(world.scheduler.finish(request_id, FinishReason.STOP))
    elif kind == "fail":
        failing.add(request_id)
        world.executor.fail_request(request_id)
    elif kind == "break":
        failing.add(request_id)
        world.executor.break_steps(request_id)
    else:
        world.executor.fail_snapshot(request_id)
    world.check()


def points(scenario: Scenario) -> int:
    return play(scenario, [])[1]


@pytest.mark.parametrize("name", SCENARIOS)
def test_nobody_interrupted_everybody_finishes(name: str) -> None:
    world, num_points = play(SCENARIOS[name], [])
    assert num_points > 14
    assert {update.finish_reason for update in world.finished.values()} == {FinishReason.LENGTH}
    assert sum(update.usage.cached_tokens > 0 for update in world.finished.values()) >= 1
    stats = world.scheduler.cache_stats()
    assert stats is not None
    if name == "tiered":
        assert stats.tiers[0].loads == 1
        assert world.finished["c"].usage.cached_tokens >= 8
    if name == "burst":
        assert stats.waits >= 2


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("action", ACTIONS, ids=" ".join)
def test_one_interruption_at_every_point(name: str, action: Action) -> None:
    scenario = SCENARIOS[name]
    for point in range(points(scenario)):
        play(scenario, [(point, action)])


def pairs(num_points: int) -> Iterator[tuple[int, int]]:
    """Each point with each of the next few: what is farther apart hardly meets."""
    return ((one, two) for one in range(num_points) for two in range(one, min(one + 5, num_points)))


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize(
    "first", [("abort", "a"), ("fail", "a"), ("break", "a"), ("abort", "c"), ("reset", "")], ids=" ".join
)
@pytest.mark.parametrize(
    "second", [("abort", "b"), ("fail", "c"), ("break next", ""), ("reset", "")], ids=" ".join
)
def test_two_interruptions_at_every_pair_of_points(name: str, first: Action, second: Action) -> None:
    scenario = SCENARIOS[name]
    for one, two in pairs(points(scenario)):
        play(scenario, [(one, first), (two, second)])


def test_a_wrong_world_is_found() -> None:
    """The oracles look on here too: a page that changes under the cache stops the play."""
    world, arrivals = staggered()
    world.add(arrivals[0])
    world.run()
    page = next(iter(world.cached_pages()))
    world.executor.memory.pages[page] = [1, 2, 3]
    world.add(arrivals[6])
    with pytest.raises((InvariantError, AssertionError)):
        world.run()
