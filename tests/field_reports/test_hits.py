"""Group A: hits that silently vanish. Each test is named by the report whose kind of fault it would show."""

from __future__ import annotations

import random

import pytest

from milepost.memory.capacity import sequence_pages
from milepost.memory.layout import paged_layout
from milepost.prefix.plan import Reason
from tests.field_reports.scenes import WORDS, Rehearsal, serve, text
from tests.model_specs import K3
from tests.scheduler.harness import SmallLayout, World, cache_config, prompt_of, request

SHARED_LENGTHS = range(0, 2201, 100)


def group_hits(rehearsal: Rehearsal, shared: int, total: int = 2200) -> list[list[int]]:
    """Hits of 8 groups of 8 prompts, which share their first `shared` tokens, a prompt of each in turn."""
    hits: list[list[int]] = [[] for _ in range(8)]
    for prompt in range(8):
        for group in range(8):
            tokens = text(f"{group}", shared) + text(f"{group}/{prompt}", total - shared)
            hits[group].append(rehearsal.serve(f"{group}/{prompt}", tokens, 1))
    return hits


@pytest.mark.parametrize("shared", SHARED_LENGTHS)
def test_r01_a_shared_prefix_is_hit_whatever_its_length(shared: int) -> None:
    """R01: 8 groups of 8 prompts; the second of a group leaves the junction, the others hit it.

    Nothing but the junction is kept, and a block (528) is no divisor of anything here.
    """
    rehearsal = Rehearsal(num_pages=2000, block_size=528, pages_per_state=4, snapshot_policy="branch")
    junction = min(shared, 2199) // 16 * 16
    if shared == 2200:
        junction = 2199
    for hits in group_hits(rehearsal, shared):
        assert hits == [0, 0] + [junction] * 6


@pytest.mark.parametrize("shared", SHARED_LENGTHS[1:-1:4])
def test_r01_with_memory_to_spare_the_second_hits_too(shared: int) -> None:
    """R01: the default policy also hits the first time a group parts, less than 64 tokens before."""
    rehearsal = Rehearsal(num_pages=40_000)
    for first, second, *others in group_hits(rehearsal, shared):
        assert first == 0
        assert second == shared // 64 * 64
        assert others == [shared // 16 * 16] * 6


@pytest.mark.parametrize("block_size", [528, 1600])
def test_r02_a_prompt_shorter_than_a_block_is_hit(block_size: int) -> None:
    """R02: 561 tokens in blocks of 528 or 1,600: the resend, and the same with something behind it."""
    rehearsal = Rehearsal(num_pages=400, block_size=block_size, pages_per_state=1)
    prompt = text("short", 561)
    assert rehearsal.serve("first", prompt) == 0
    assert rehearsal.serve("resend", prompt) == 560
    assert rehearsal.serve("longer", prompt + text("suffix", 40)) == 560
    assert rehearsal.serve("cut", prompt[:300]) == 299 // 64 * 64


def test_r03_the_junction_of_two_prompts_gets_a_state() -> None:
    """R03: 560 tokens shared, 1,386 apart: after the second prompt a state stands at 560."""
    rehearsal = Rehearsal(num_pages=4000, snapshot_policy="adaptive(spare=0)")
    shared = text("shared", 560)
    for name in ("first", "second"):
        assert rehearsal.serve(name, shared + text(name, 1386)) == 0
    third = shared + text("third", 1386)
    known = rehearsal.cache.explain(third)
    assert [(one.position, one.reason) for one in known.snapshots] == [(560, "branch")]
    assert rehearsal.serve("third", third) == 560


@pytest.mark.parametrize(
    ("policy", "hits"),
    [("adaptive", [0, 1055, 1055]), ("prompt-tail", [0, 1055, 1055]), ("branch", [0, 0, 1055])],
)
def test_r04_the_same_prompt_again_and_again(policy: str, hits: list[int]) -> None:
    """R04: a hit is at most N-1, and N-1 is where a state is left; N is a multiple of unit and block here."""
    rehearsal = Rehearsal(num_pages=1000, block_size=528, pages_per_state=1, snapshot_policy=policy)
    prompt = text("again", 1056)
    assert [rehearsal.serve(f"{i}", prompt) for i in range(3)] == hits


def test_r11_long_sessions_keep_their_hits_in_a_pool_of_twice_what_they_need() -> None:
    """R11: states crowd out KV late in long sessions. Here every turn computes what is new, to the end.

    A state is as large as 128 tokens of KV, a turn 160 tokens; the pool is twice what all sessions
    hold in the end.
    """
    sessions, turns, new = 6, 24, 150
    layout = SmallLayout(block_size=16, pages_per_state=8)
    need = sessions * sequence_pages(layout, turns * (new + 10))
    rehearsal = Rehearsal(num_pages=1 + 2 * need)
    history = {session: text(session, 0) for session in range(sessions)}
    for turn in range(turns):
        for session, before in history.items():
            prompt = before + text(f"{session}/{turn}", new)
            name = f"{session}/{turn}"
            hit = rehearsal.serve(name, prompt, 10, message_ends=(len(prompt) - 3,))
            assert len(prompt) - hit <= new + 1, f"turn {turn} of session {session}"
            history[session] = (*prompt, *rehearsal.drawn[name])
        stats = rehearsal.cache.stats()
        assert stats.state_pages + stats.kv_pages <= 2 * need
    assert rehearsal.scheduler.stats().preemptions == 0
    assert rehearsal.cache.stats().evicted_snapshots > 0, "the pool was never tight"


def test_r12_tokens_lost_for_want_of_a_state_are_counted() -> None:
    """R12: KV that matches and can't be used shows in the counters, told apart from what was never there."""
    world = World(num_pages=64, cache=cache_config(match_unit=4, snapshot_policy="last"))
    prompt = prompt_of(30)
    serve(world, "first", prompt)
    serve(world, "second", (*prompt[:20], 1 - prompt[20]))
    stats = world.scheduler.cache_stats()
    assert stats is not None
    assert stats.losses["no_snapshot"] == 20
    assert stats.losses["unseen"] == 29
    assert stats.hit_tokens + sum(stats.losses.values()) == stats.looked_up_tokens == 30 + 21


def test_r13_a_long_prompts_own_checkpoints_evict_nobody() -> None:
    """R13: what a prompt leaves only because there is room never takes room from what is hit."""
    long = sequence_pages(SmallLayout(block_size=16, pages_per_state=8), 6400)
    # Room for everything but what is left on the way: 100 states of 8 pages for each long prompt.
    rehearsal = Rehearsal(num_pages=1 + 100 + 4 * (long + 16) + 50)
    hot = text("hot", 640)
    rehearsal.serve("hot", hot, 1)
    for i in range(4):
        rehearsal.serve(f"long {i}", text(f"long {i}", 6400), 1)
        assert rehearsal.serve(f"hot {i}", hot, 1) == 639
    stats = rehearsal.cache.stats()
    assert stats.snapshots_by_reason["spare"] < 4 * 100, "there was room for all of them"
    for i in range(4):
        assert rehearsal.serve(f"long {i} again", text(f"long {i}", 6400), 1) == 6399


@pytest.mark.parametrize("budget", [700, 4096])
def test_r13_a_state_that_lasts_comes_before_those_that_only_use_room(budget: int) -> None:
    """R13: a prompt's own states that are there for lack of better use never cost another one's state.

    Beside four prompts there is room for one more and for both of its lasting states, not for more.
    """
    need = sequence_pages(SmallLayout(block_size=16, pages_per_state=8), 1300) + 8
    rehearsal = Rehearsal(num_pages=1 + 5 * need, token_budget=budget)
    for i in range(5):
        rehearsal.serve(f"{i}", text(i, 1300), 1)
    assert [rehearsal.cache.explain(text(i, 1300)).hit_tokens for i in range(5)] == [1299] * 5


def test_r13_a_state_that_was_left_for_want_of_better_use_may_get_a_better_one() -> None:
    """R13: a reply that ends where a state stands already keeps it as its last one."""
    rehearsal = Rehearsal(num_pages=4000)
    rehearsal.serve("first", text("first", 1275), 6)
    reasons = {one.position: one.reason for one in rehearsal.cache.index.snapshots}
    assert reasons[1280] is Reason.LAST
    assert reasons[1216] is Reason.SPARE
    # All that is there because there was room goes, and this one stays.
    stats = rehearsal.cache.stats()
    free = rehearsal.pool.num_free + 8 * stats.snapshots_by_reason["spare"]
    assert rehearsal.cache.make_room(free)
    assert rehearsal.pool.num_free == free
    assert {one.position for one in rehearsal.cache.index.snapshots} == {1274, 1280}


def test_r16_a_hit_refreshes_the_state_it_resumes_from_and_no_other() -> None:
    """R16: a session's inner states don't stay warm with its newest one, while a colder session dies."""
    config = cache_config(match_unit=4, snapshot_policy="every(8)", eviction="lru")
    world = World(num_pages=200, cache=config)
    assert world.cache is not None
    prompt, cold = prompt_of(33), prompt_of(9, 1)
    serve(world, "first", prompt)
    world.now = 100.0
    serve(world, "cold", cold)
    world.now = 200.0
    assert serve(world, "again", prompt) == 32
    used = [snapshot.position for snapshot in world.cache.index.snapshots if snapshot.used_at >= 200.0]
    assert used == [32]
    # Three states go: the session's inner ones, which were used before the cold session's.
    for _ in range(3):
        assert world.cache.make_room(world.pool.num_free + 2)
    assert serve(world, "cold again", cold) == 8
    assert serve(world, "once more", prompt) == 32


def test_r17_what_nobody_can_reuse_goes_before_what_is_hit() -> None:
    """R17: KV without a state, and pages that were never cached, are used up first."""
    world = World(num_pages=1 + 30, cache=cache_config(match_unit=4, snapshot_policy="turns"))
    hot = prompt_of(13, 5)
    serve(world, "hot", hot, message_ends=[12])
    for seed in range(12):
        serve(world, f"{seed}", prompt_of(40, seed % 4), 2, output_reusable=bool(seed % 2))
        assert serve(world, f"hot {seed}", hot) == 12
    stats = world.scheduler.cache_stats()
    assert stats is not None
    assert stats.evicted_snapshots == 0
    assert stats.evicted_kv_pages > 30


def test_r18_one_pool_pays_for_bytes_and_not_for_groups() -> None:
    """R18: 32K tokens of Kimi K3 take a state and their KV, within 2 % of the bytes these really have."""
    layout = paged_layout(K3, tensor_parallel=8)
    mla_layers = sum(kind.name == "MLA" for kind in K3.layers)
    assert K3.mla is not None
    kv_bytes = 32_768 * mla_layers * (K3.mla.kv_lora_rank + K3.mla.rope_head_dim) * 2
    held = sequence_pages(layout, 32_768) * layout.page_bytes
    assert held < 1.02 * (kv_bytes + layout.state_bytes)


@pytest.mark.parametrize("policy", ["adaptive", "adaptive(spare=0)", "last"])
def test_r19_a_chat_that_only_grows_computes_its_new_tokens_only(policy: str) -> None:
    """R19: ten turns on 15,000 tokens; what is computed is the newest message and the last token drawn."""
    rehearsal = Rehearsal(num_pages=8000, snapshot_policy=policy)
    prompt, known = text("book", 15_000), 0
    for turn in range(10):
        hit = rehearsal.serve(f"turn {turn}", prompt, 20)
        assert hit == known
        known = len(prompt) + 19
        prompt = (*prompt, *rehearsal.drawn[f"turn {turn}"], *text(turn, 37))


@pytest.mark.parametrize("away", [11, 2_000, 40_000, 250_000])
def test_r20_leaving_a_long_prompt_early_loses_nothing_of_it(away: int) -> None:
    """R20: 258,000 tokens, then a prompt that leaves them at a token of the header: both are still there."""
    need = sequence_pages(SmallLayout(block_size=16, pages_per_state=8), 258_000)
    rehearsal = Rehearsal(num_pages=1 + 2 * need + 40 * 8, token_budget=8192)
    prompt = text("long", 258_000)
    rehearsal.serve("long", prompt, 1)
    other = prompt[:away] + text("other", 500)
    hit = rehearsal.serve("other", other, 1)
    assert away - hit < 256, "some 1,900 states fit"
    assert rehearsal.serve("long again", prompt, 1) == 257_999
    assert rehearsal.serve("other again", other, 1) == len(other) - 1


def test_r20_a_pool_that_is_nearly_full_keeps_a_spread_and_not_the_newest() -> None:
    """R20: with room for 40 states, leaving at any depth recomputes at most a fraction of what was shared."""
    length = 64_000
    need = sequence_pages(SmallLayout(block_size=16, pages_per_state=8), length)
    for away in (3_000, 9_000, 20_000, 33_000, 50_000, 63_000):
        rehearsal = Rehearsal(num_pages=1 + (need + 40 * 8) * 16 // 15, token_budget=2048)
        prompt = text("long", length)
        rehearsal.serve("long", prompt, 1)
        explained = rehearsal.cache.explain(prompt[:away] + (WORDS,) * 200)
        assert away - explained.hit_tokens <= length / 8, [one.position for one in explained.snapshots]


@pytest.mark.parametrize("seed", range(6))
def test_r23_the_opener_of_a_reply_never_costs_the_message_before_it(seed: int) -> None:
    """R23: each turn ends with an opener of one to six tokens that the next turn does not repeat there."""
    draw = random.Random(seed)
    world = World(num_pages=400, token_budget=23, cache=cache_config(match_unit=draw.choice([3, 4, 16])))
    messages, known = prompt_of(9, seed), 0
    for turn in range(6):
        end = len(messages)
        opener = tuple(draw.randrange(2, 9) for _ in range(draw.randint(1, 6)))
        hit = serve(world, f"turn {turn}", messages + opener, 3, message_ends=[end], output_reusable=False)
        assert hit == known
        known = end
        messages += tuple(draw.randrange(2) for _ in range(draw.randint(1, 9)))


def test_r22_a_conversation_without_marks_resumes_from_its_last_turn() -> None:
    """R22: nothing can be trimmed off a state, so a plain completion leaves one where the next will look."""
    rehearsal = Rehearsal(num_pages=4000)
    prompt = text("chat", 700)
    rehearsal.serve("first", prompt, 30)
    assert rehearsal.serve("edited", prompt + text("another reply", 50), 1) >= 699


def test_r26_a_prompt_below_a_unit_is_told_from_a_cache_that_lost_its_state() -> None:
    """R26: the same zero hit has two counters, by cause."""
    world = World(num_pages=100, cache=cache_config(match_unit=16, snapshot_policy="last"))
    serve(world, "short", prompt_of(15), 1)
    serve(world, "unit", prompt_of(20, 1), 1)
    serve(world, "long", prompt_of(64, 2), 1)

    def losses(name: str, prompt: tuple[int, ...]) -> dict[str, int]:
        assert world.cache is not None
        return dict(world.cache.explain(prompt).losses)

    assert losses("short", prompt_of(14)) == {"unseen": 13, "cap": 1}
    assert losses("unit", (*prompt_of(17, 1), 0, 0))["no_snapshot"] == 16
    world.add(request("tail", (*prompt_of(20, 1), 1, 1, 0), 1))
    world.run()
    assert world.cache is not None
    for snapshot in [*world.cache.index.snapshots]:
        world.cache.evictor.drop(snapshot)
    assert losses("long", (*prompt_of(64, 2), 1))["evicted_state"] == 64
    assert Reason.LAST.value == "last"
