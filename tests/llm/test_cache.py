"""The prefix cache through the LLM class, on a small real checkpoint: what it reuses and what it says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import CheckpointError, ConfigError, RequestError
from milepost.llm import LLM, loading
from milepost.types import SamplingParams
from tests.llm.checkpoints import ENGINE, copied, truncate_a_shard

GREEDY = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
PROMPT = "a mile post stands beside the road and tells how far it is"


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture(scope="module")
def cold(quiet_k3: Path) -> Iterator[LLM]:
    """The same model with the cache off."""
    with LLM(quiet_k3, prefix_cache=False, **ENGINE) as loaded:
        yield loaded


@pytest.fixture
def warm(llm: LLM) -> LLM:
    """The shared model with an empty cache."""
    llm.reset_cache()
    return llm


def test_a_resend_computes_one_token_and_says_the_same(warm: LLM, cold: LLM) -> None:
    first, again = (warm.generate(PROMPT, GREEDY)[0] for _ in range(2))
    assert first.usage.cached_tokens == 0
    assert again.usage.cached_tokens == again.usage.prompt_tokens - 1
    assert first.token_ids == again.token_ids == cold.generate(PROMPT, GREEDY)[0].token_ids


def test_a_chat_computes_what_is_new(warm: LLM, cold: LLM) -> None:
    messages = [user("the road")]
    known = 0
    for turn in range(4):
        done, expected = (one.chat(messages, GREEDY) for one in (warm, cold))
        assert done.reply == expected.reply
        usage = done.completion.usage
        assert usage.cached_tokens >= known, "the prompt of the turn before is not computed again"
        known = usage.prompt_tokens - 1
        messages += [{"role": "assistant", "content": done.reply.content}, user(f"and {turn}")]
    stats = warm.stats().cache
    assert stats is not None
    assert stats.snapshots_by_reason["turn"] > 0


def test_a_stream_resumes_too(warm: LLM) -> None:
    done = list(warm.stream_chat([user("the road")], GREEDY))[-1][1]
    again = list(warm.stream_chat([user("the road")], GREEDY))[-1][1]
    assert (done.usage.cached_tokens, again.usage.cached_tokens) == (0, again.usage.prompt_tokens - 1)


def test_only_the_same_salt_hits(warm: LLM) -> None:
    def cached(salt: str) -> list[int]:
        chat = warm.chat([user("the road")], GREEDY, cache_salt=salt).completion
        (raw,) = warm.generate(PROMPT, GREEDY, cache_salt=salt)
        return [chat.usage.cached_tokens, raw.usage.cached_tokens]

    assert cached("a") == cached("b") == [0, 0]
    assert min(cached("a")) > 0
    assert cached("") == [0, 0]
    assert warm.explain(PROMPT, cache_salt="b").hit_tokens > 0
    assert warm.explain(PROMPT, cache_salt="c").hit_tokens == 0


def test_an_explanation_foretells_what_a_request_hits(warm: LLM) -> None:
    nothing = warm.explain(PROMPT)
    assert (nothing.hit_tokens, nothing.snapshots) == (0, ())
    assert sum(nothing.losses.values()) == nothing.prompt_tokens
    warm.generate(PROMPT, GREEDY)
    longer = PROMPT + " and more"
    foretold = warm.explain(longer)
    assert foretold.hit_tokens + sum(foretold.losses.values()) == foretold.prompt_tokens
    assert foretold.hit_tokens == warm.generate(longer, GREEDY)[0].usage.cached_tokens > 0
    warm.chat([user("the road")], GREEDY)
    asked = warm.explain(messages=[user("the road")])
    assert asked.hit_tokens == asked.prompt_tokens - 1
    assert warm.explain(warm.tokenizer.encode(PROMPT)) == warm.explain(PROMPT)


def test_a_reset_forgets_everything(warm: LLM) -> None:
    warm.generate(PROMPT, GREEDY)
    assert warm.reset_cache() > 0
    stats = warm.stats()
    assert stats.cache is not None
    assert (stats.cache.snapshots, stats.cache.state_pages, stats.cache.kv_pages) == (0, 0, 0)
    assert warm.generate(PROMPT, GREEDY)[0].usage.cached_tokens == 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "Given: neither"),
        ({"prompt": "a", "messages": [user("a")]}, "Given: both"),
        ({"prompt": "a", "cache_salt": 7}, "cache_salt must be a string"),
        ({"prompt": "a", "cache_salt": "\ud800"}, "must be Unicode"),
        ({"prompt": 7}, "must be text or token ids"),
    ],
)
def test_what_cannot_be_explained(llm: LLM, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises(RequestError, match=says):
        llm.explain(**arguments)


def test_the_form_belongs_to_messages(llm: LLM) -> None:
    assert llm.explain(messages=[user("a")], thinking=True).prompt_tokens > 0
    with pytest.raises(ConfigError, match="thinking means something with messages only"):
        llm.explain("a", thinking=True)
    with pytest.raises(ConfigError, match=r"'thinkin'. Did you mean 'thinking'"):
        llm.explain(messages=[user("a")], thinkin=True)


def test_off_is_off(cold: LLM) -> None:
    assert cold.stats().cache is None
    assert [done.usage.cached_tokens for done in cold.generate([PROMPT, PROMPT], GREEDY)] == [0, 0]
    with pytest.raises(ConfigError, match="prefix cache is off"):
        cold.explain(PROMPT)
    with pytest.raises(ConfigError, match="prefix cache is off"):
        cold.reset_cache()


@pytest.mark.parametrize(
    "options",
    [
        {"match_unit": "block", "block_size": 8},
        {"match_unit": 5, "snapshot_policy": "last+every(7)", "eviction": "lru"},
        {"snapshot_policy": "turns+branch", "eviction": "marconi(alpha=0.5)", "wait_for_leaders": False},
        {"snapshot_policy": "budget", "cache_key": "0f" * 32},
    ],
)
def test_options_reach_the_cache_and_change_no_answer(quiet_k3: Path, cold: LLM, options: Any) -> None:
    prompts = [PROMPT, PROMPT, PROMPT + " and more"]
    with LLM(quiet_k3, **(ENGINE | options)) as llm:
        cache = llm.config.cache
        assert cache is not None
        assert cache.match_unit == {"block": 8}.get(options.get("match_unit"), options.get("match_unit", 16))
        done = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
    expected = cold.generate(prompts, GREEDY)
    assert [one.token_ids for one in done] == [one.token_ids for one in expected]


def test_on_the_aligned_layout_a_block_s_unit_is_the_grown_block_s(quiet_k3: Path, cold: LLM) -> None:
    with LLM(quiet_k3, **(ENGINE | {"layout": "aligned", "match_unit": "block"})) as llm:
        assert llm.config.cache is not None
        assert llm.config.cache.match_unit == llm.layout.block_size > 64
        done = [llm.generate(PROMPT, GREEDY)[0] for _ in range(2)]
    assert done[1].usage.cached_tokens == done[1].usage.prompt_tokens - 1
    assert {one.token_ids for one in done} == {cold.generate(PROMPT, GREEDY)[0].token_ids}


@pytest.mark.parametrize("options", [{"snapshot_policy": "adaptve"}, {"eviction": "lfu"}])
def test_a_wrong_policy_is_found_before_the_weights_are_read(
    quiet_k3: Path, monkeypatch: pytest.MonkeyPatch, options: Any
) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("weights are read")

    monkeypatch.setattr(loading, "load_runner", load)
    with pytest.raises(ConfigError, match=next(iter(options.values()))):
        LLM(quiet_k3, **ENGINE, **options)


def test_what_the_arena_gave_up_comes_back_from_the_host(quiet_k3: Path, cold: LLM) -> None:
    # More than the arena can keep, each long enough to be worth a load.
    prompts = [f"{number} {PROMPT} " * 5 for number in range(12)]
    with LLM(quiet_k3, **(ENGINE | {"memory": "1MiB", "host_cache": "64MiB"})) as llm:
        for prompt in prompts:
            llm.generate(prompt, GREEDY)
        again = [llm.generate(prompt, GREEDY)[0] for prompt in prompts]
        stats = llm.stats().cache
        assert stats is not None
        (tier,) = stats.tiers
        assert (tier.name, tier.failures) == ("host", 0)
        assert tier.loads > 0
        assert tier.hit_tokens > 0
        llm.reset_cache()
    expected = cold.generate(prompts, GREEDY)
    assert [one.token_ids for one in again] == [one.token_ids for one in expected]


def test_what_is_on_disk_survives_a_restart(quiet_k3: Path, tmp_path: Path, cold: LLM) -> None:
    options = ENGINE | {"host_cache": "16MiB", "disk_cache": f"{tmp_path / 'kept'},64MiB"}
    prompt = f"{PROMPT} " * 5
    with LLM(quiet_k3, **options) as llm:
        llm.generate(prompt, GREEDY)
        deadline = time.monotonic() + 20
        # The spill runs beside the steps, and its end is noticed by one.
        while not _on_disk(llm):
            assert time.monotonic() < deadline
            llm.generate("a", GREEDY)
    with LLM(quiet_k3, **options) as llm:
        assert llm.config.notes == ()
        foretold = llm.explain(prompt)
        (again,) = llm.generate(prompt, GREEDY)
    assert again.usage.cached_tokens == foretold.hit_tokens > 0
    assert foretold.snapshots[-1].tier == "disk"
    assert again.token_ids == cold.generate(prompt, GREEDY)[0].token_ids
    with LLM(quiet_k3, **(options | {"kv_dtype": "bfloat16"})) as other:
        (note,) = other.config.notes
        assert "kept held what this engine can't use and begins empty: it is of another model, dtype," in note
        assert other.generate(prompt, GREEDY)[0].usage.cached_tokens == 0, "pages of other numbers"


def _on_disk(llm: LLM) -> int:
    stats = llm.stats().cache
    assert stats is not None
    return next(tier.stores for tier in stats.tiers if tier.name == "disk")


def test_a_load_that_fails_leaves_the_disk_to_the_next_one(quiet_k3: Path, tmp_path: Path) -> None:
    torn = copied(quiet_k3, tmp_path / "torn", truncate_a_shard)
    options = ENGINE | {"host_cache": "16MiB", "disk_cache": f"{tmp_path / 'kept'},64MiB"}
    with pytest.raises(CheckpointError):
        LLM(torn, **options)
    with LLM(quiet_k3, **options) as llm:
        assert llm.generate(PROMPT, GREEDY)


def test_a_tier_too_small_for_a_page_is_refused(quiet_k3: Path) -> None:
    with pytest.raises(ConfigError, match="host_cache must hold at least two pages"):
        LLM(quiet_k3, **ENGINE, host_cache=1000)


def test_an_engine_s_end_brings_the_cache_to_disk(quiet_k3: Path, tmp_path: Path, cold: LLM) -> None:
    """At once, without another step after the request."""
    options = ENGINE | {"host_cache": "16MiB", "disk_cache": f"{tmp_path / 'kept'},64MiB"}
    prompt = f"{PROMPT} " * 5
    with LLM(quiet_k3, **options) as llm:
        first = llm.generate(prompt, GREEDY)[0]
    with LLM(quiet_k3, **options) as llm:
        stats = llm.stats().cache
        assert stats is not None
        assert stats.tiers[1].snapshots >= 2
        again = llm.generate(prompt, GREEDY)[0]
        longer = llm.generate(prompt + " and more", GREEDY)[0]
    assert again.usage.cached_tokens == first.usage.prompt_tokens - 1
    assert longer.usage.cached_tokens > 0
    assert first.token_ids == again.token_ids
    assert longer.token_ids == cold.generate(prompt + " and more", GREEDY)[0].token_ids


def test_what_was_reset_is_not_found_after_a_restart(quiet_k3: Path, tmp_path: Path) -> None:
    options = ENGINE | {"host_cache": "16MiB", "disk_cache": f"{tmp_path / 'kept'},64MiB"}
    prompt = f"{PROMPT} " * 5
    with LLM(quiet_k3, **options) as llm:
        llm.generate(prompt, GREEDY)
    with LLM(quiet_k3, **options) as llm:  # some is there already, some may be on its way
        llm.generate(prompt + " and more", GREEDY)
        llm.reset_cache()
    with LLM(quiet_k3, **options) as llm:
        stats = llm.stats().cache
        assert stats is not None
        assert [tier.snapshots for tier in stats.tiers] == [0, 0]
        assert llm.generate(prompt, GREEDY)[0].usage.cached_tokens == 0


def test_a_disk_in_nobodys_home_is_refused(quiet_k3: Path) -> None:
    with pytest.raises(ConfigError, match=r"home folder of a user.*Given: '~nobody-here/kept'"):
        LLM(quiet_k3, **ENGINE, host_cache="1MiB", disk_cache="~nobody-here/kept,1MiB")
