"""Why tokens had to be computed: every cause occurs, and with the hit they add up to the prompt."""

from __future__ import annotations

import pytest

from milepost.errors import ConfigError
from milepost.prefix.reports import Loss
from tests.scheduler.harness import TierOptions, World, cache_config, prompt_of, request

PROMPT = prompt_of(10)


def world_of(policy: str, *, num_pages: int = 64, token_budget: int = 16, **config: object) -> World:
    settings = cache_config(match_unit=4, snapshot_policy=policy, **config)
    return World(num_pages=num_pages, token_budget=token_budget, cache=settings)


def losses(world: World) -> dict[str, int]:
    stats = world.scheduler.cache_stats()
    assert stats is not None
    assert set(stats.losses) == {loss.value for loss in Loss}
    assert sum(stats.losses.values()) + stats.hit_tokens == stats.looked_up_tokens
    return dict(stats.losses)


def serve(world: World, prompt: tuple[int, ...] = PROMPT, salt: str = "") -> dict[str, int]:
    """Serve one request; its losses by cause."""
    before = losses(world)
    world.add(request(f"r{len(world.requests)}", prompt, 1, salt=salt))
    world.run()
    return {cause: count - before[cause] for cause, count in losses(world).items() if count - before[cause]}


def explained(world: World, prompt: tuple[int, ...] = PROMPT, salt: str = "") -> dict[str, int]:
    explanation = world.scheduler.explain(prompt, salt)
    assert explanation.hit_tokens + sum(explanation.losses.values()) == explanation.prompt_tokens
    return dict(explanation.losses)


def evict(world: World, position: int) -> None:
    assert world.cache is not None
    for snapshot in [*world.cache.index.snapshots]:
        if snapshot.position == position:
            world.cache.evictor.drop(snapshot)


def test_unseen_and_then_only_the_last_token() -> None:
    world = world_of("prompt-tail")
    assert serve(world) == {"unseen": 9, "cap": 1}
    assert serve(world) == {"cap": 1}
    assert serve(world, PROMPT[:1]) == {"cap": 1}


def test_kv_that_no_snapshot_stands_on() -> None:
    world = world_of("none")
    serve(world)
    assert explained(world) == serve(world) == {"no_snapshot": 8, "unseen": 1, "cap": 1}


def test_less_than_a_unit_behind_a_snapshot() -> None:
    world = world_of("every(6)")
    serve(world)
    assert explained(world) == serve(world) == {"below_unit": 2, "unseen": 1, "cap": 1}


def test_r12_evicted_states_at_a_unit_s_end_and_between() -> None:
    """R12: KV that matched and was lost to a missing state is counted."""
    world = world_of("prompt-tail+every(8)")
    serve(world)
    evict(world, 9)
    assert explained(world) == {"evicted_state": 1, "cap": 1}
    evict(world, 8)
    assert explained(world) == {"evicted_state": 9, "cap": 1}
    assert world.cache is not None
    world.cache.index.drop_bare()  # the tail's KV, less than a unit, is not remembered
    assert explained(world) == serve(world) == {"evicted_state": 8, "unseen": 1, "cap": 1}


def test_evicted_kv() -> None:
    world = world_of("prompt-tail")
    serve(world)
    assert world.cache is not None
    world.cache.make_room(world.pool.num_usable)
    assert explained(world) == serve(world) == {"evicted_kv": 8, "unseen": 1, "cap": 1}


def test_another_tenant_s_salt() -> None:
    world = world_of("prompt-tail")
    serve(world)
    for _ in range(2):
        assert explained(world, salt="tenant") == {"salt": 9, "cap": 1}
    assert serve(world, salt="tenant") == {"salt": 9, "cap": 1}
    assert serve(world, salt="tenant") == {"cap": 1}
    assert serve(world, PROMPT[:3], salt="another") == {"unseen": 2, "cap": 1}, "too short to be known"


def test_what_follows_a_beginning_that_all_tenants_share_is_not_another_one_s() -> None:
    world = world_of("prompt-tail+every(4)")
    for salt in ("", "tenant"):
        serve(world, salt=salt)
    longer = (*PROMPT, 1, 1, 1, 1)
    assert explained(world, longer, "tenant") == serve(world, longer, "tenant") == {"unseen": 4, "cap": 1}


def test_a_tier_has_a_few_tokens_more_and_no_load_is_worth_it() -> None:
    config = cache_config(match_unit=4, snapshot_policy="prompt-tail")
    tiers = TierOptions(host_pages=100, least_gain=6)
    world = World(num_pages=64, token_budget=16, cache=config, tiers=tiers)
    serve(world, PROMPT[:5])
    serve(world)
    assert world.cache is not None
    world.cache.make_room(world.pool.num_usable)
    assert world.scheduler.explain(PROMPT).hit_tokens == 9
    assert explained(world) == {"cap": 1}, "a load saves nine tokens"
    short = (*PROMPT[:5], 1 - PROMPT[5], 0)
    assert world.scheduler.explain(short).snapshots[-1].tier == "host"
    assert explained(world, short) == serve(world, short) == {"not_loaded": 4, "unseen": 2, "cap": 1}


def test_a_reset_forgets_causes_too() -> None:
    world = world_of("prompt-tail")
    serve(world)
    world.scheduler.reset_cache()
    assert explained(world) == {"unseen": 9, "cap": 1}
    assert serve(world, salt="tenant") == {"unseen": 9, "cap": 1}


def test_what_another_one_is_computing_right_now() -> None:
    world = world_of("prompt-tail", token_budget=7, wait_for_leaders=False)
    world.add(request("leader", PROMPT, 1))
    world.step()
    world.add(request("late", (*PROMPT, 1), 1))
    world.run()
    # The first step has published a unit, on which no snapshot stands.
    assert losses(world)["no_snapshot"] == 4
    assert losses(world)["not_published"] == 6
    assert world.finished["late"].usage.cached_tokens == 0


def test_what_is_cached_and_in_the_way() -> None:
    """The snapshot and the live state do not both fit, so the request begins from nothing."""
    world = world_of("last", num_pages=1 + 5)
    serve(world, PROMPT[:9])
    assert serve(world, PROMPT) == {"no_memory": 9, "cap": 1}
    assert all(not update.usage.cached_tokens for update in world.finished.values())


def test_without_a_cache_there_is_nothing_to_explain_or_to_reset() -> None:
    world = World()
    assert world.scheduler.cache_stats() is None
    with pytest.raises(ConfigError, match="prefix cache is off"):
        world.scheduler.explain(PROMPT)
    with pytest.raises(ConfigError, match="prefix cache is off"):
        world.scheduler.reset_cache()


def test_an_explanation_shows_the_path_and_changes_nothing() -> None:
    world = world_of("every(3)+prompt-tail")
    serve(world)
    before = world.scheduler.cache_stats()
    for _ in range(2):
        told = world.scheduler.explain((*PROMPT[:7], 1 - PROMPT[7]))
        assert (told.hit_tokens, told.matched_tokens, told.deepest_snapshot) == (6, 6, 6)
        assert [(one.position, one.reason, one.hits) for one in told.snapshots] == [
            (3, "period", 0),
            (6, "period", 0),
        ]
    resend = world.scheduler.explain(PROMPT[:9])
    assert (resend.hit_tokens, resend.matched_tokens, resend.deepest_snapshot) == (6, 9, 9)
    assert resend.losses == {"below_unit": 2, "cap": 1}
    assert world.scheduler.cache_stats() == before
