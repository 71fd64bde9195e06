"""With the prefix cache every answer is the cold one, token for token, whatever it is set to.

The shipped model, its own chat encoding, poisoned free pages, and every load served twice, so that
the second time there is something to hit everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import pytest

from milepost.memory.capacity import sequence_pages
from milepost.prefix.config import CacheConfig
from milepost.types import Request, SamplingParams
from tests.e2e.engines import TestEngine, Toy, final_length, tokens_of
from tests.e2e.shipped import OUTPUT_TOKENS, Shipped, load_shipped

SAMPLED = SamplingParams(temperature=0.9, top_p=0.95, max_tokens=OUTPUT_TOKENS, seed=11)

Tokens = dict[str, list[int]]


@dataclass(frozen=True)
class Setting:
    """How a load is served.

    `room` is the pool's size: the sequences of the longest request's length that it holds; `host` is
    the host tier's, in the same measure. `unit` 0 is a block's.
    """

    policy: str = "adaptive"
    eviction: str = "value"
    unit: int = 16
    aligned: bool = False
    followers: bool = True
    budget: int = 2048
    room: float = 20.0
    host: float = 0.0
    preempt: float = 0.0
    arrivals: int | None = None
    seed: int = 0

    def __str__(self) -> str:
        given = (f"{name}={value}" for name, value in vars(self).items() if value != getattr(Setting, name))
        return " ".join(given) or "default"


@pytest.fixture(scope="module")
def shipped() -> Shipped:
    return load_shipped()


def cold_run(shipped: Shipped, requests: list[Request]) -> Tokens:
    """Each served alone by an engine without a cache."""
    tokens: Tokens = {}
    for request in requests:
        engine = TestEngine(
            shipped.toy, num_pages=shipped.toy.pages_for([request]), stop_token_ids=shipped.stop_token_ids
        )
        tokens |= tokens_of(engine.run([request]))
    return tokens


@pytest.fixture(scope="module")
def cold(shipped: Shipped) -> Tokens:
    return cold_run(shipped, shipped.load())


@pytest.fixture(scope="module")
def cold_draws(shipped: Shipped) -> Tokens:
    return cold_run(shipped, shipped.load(SAMPLED))


def engine_for(shipped: Shipped, toy: Toy, requests: list[Request], setting: Setting) -> TestEngine:
    longest = sequence_pages(toy.layout, max(final_length(request) for request in requests))
    unit = setting.unit or toy.layout.block_size
    return TestEngine(
        toy,
        num_pages=1 + int(setting.room * longest),
        budget=setting.budget,
        preempt=setting.preempt,
        seed=setting.seed,
        cache=CacheConfig(
            match_unit=unit,
            snapshot_policy=setting.policy,
            eviction=setting.eviction,
            wait_for_leaders=setting.followers,
        ),
        host_pages=int(setting.host * longest),
        stop_token_ids=shipped.stop_token_ids,
    )


def serve(shipped: Shipped, setting: Setting, expected: Tokens, sampling: SamplingParams) -> TestEngine:
    """Serve the load twice, and compare every answer."""
    toy = shipped.on_aligned() if setting.aligned else shipped.toy
    requests = shipped.load(sampling)
    engine = engine_for(shipped, toy, requests, setting)
    for _ in range(2):
        assert tokens_of(engine.run(requests, arrivals=setting.arrivals)) == expected
    return engine


SETTINGS = [
    Setting(),
    Setting(budget=7, arrivals=1),
    Setting(budget=64, unit=5, followers=False),
    Setting(unit=0, policy="turns+branch", arrivals=3),
    Setting(aligned=True, budget=64),
    Setting(aligned=True, unit=0, policy="every(64)", eviction="lru", room=3.0),
    Setting(policy="last", eviction="lru", room=1.5),
    Setting(policy="prompt-tail", preempt=0.3, budget=64, arrivals=1),
    Setting(policy="turns", eviction="marconi(alpha=0.5)", room=1.2, budget=64),
    Setting(policy="branch+last", room=2.0, preempt=0.2, followers=False),
    Setting(policy="budget(snapshots=5)", eviction="marconi", room=1.5),
    Setting(policy="none", room=1.0, preempt=0.3, arrivals=1),
    Setting(room=2.0, host=10.0, arrivals=1),
    Setting(room=1.2, host=4.0, budget=64, unit=1, preempt=0.2),
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_the_cold_answers(shipped: Shipped, cold: Tokens, setting: Setting) -> None:
    engine = serve(shipped, setting, cold, SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS))
    stats = engine.scheduler.cache_stats()
    assert stats is not None
    if setting.policy != "none":
        assert stats.hit_tokens > 100
    if setting.room <= 2:
        assert stats.evicted_snapshots or setting.policy == "none"
    if setting.host:
        assert stats.tiers[0].loads > 0
    if setting.preempt and not setting.host:  # who runs beside whom hangs on when loads end
        assert engine.scheduler.stats().preemptions > 0
    engine.check_reset()


def test_the_load_is_worth_serving(shipped: Shipped, cold: Tokens) -> None:
    """The model answers from the cached part: what it recalls stands in the first message."""
    text = {name: shipped.tokenizer.decode(tokens) for name, tokens in cold.items()}
    for name in ("ask", "resend"):
        assert text[name].startswith(shipped.recalls[0].answer)
    assert text["other"].startswith(shipped.recalls[1].answer)
    assert shipped.recalls[0].answer in text["sentence"]
    assert len(set(map(tuple, cold.values()))) >= 8


@pytest.mark.parametrize(
    "setting",
    [Setting(), Setting(budget=64, room=1.5, preempt=0.2, arrivals=1), Setting(room=2.0, host=8.0)],
    ids=str,
)
def test_the_cold_draws(shipped: Shipped, cold: Tokens, cold_draws: Tokens, setting: Setting) -> None:
    """A seeded request draws the same whether it resumes or not."""
    assert cold_draws != cold
    serve(shipped, setting, cold_draws, SAMPLED).check_reset()


def random_setting(seed: int) -> Setting:
    draw = Random(seed)
    return Setting(
        policy=draw.choice(
            ["adaptive", "turns", "branch", "last+prompt-tail", "every(7)", "every(64)+turns", "budget"]
        ),
        eviction=draw.choice(["value", "lru", "marconi(alpha=2)"]),
        unit=draw.choice([0, 1, 5, 16, 16, 48]),
        aligned=draw.random() < 0.25,
        followers=draw.random() < 0.7,
        budget=draw.choice([7, 33, 64, 2048]),
        room=draw.choice([1.0, 1.3, 2.0, 6.0]),
        host=draw.choice([0.0, 2.0, 10.0]),
        preempt=draw.choice([0.0, 0.1, 0.4]),
        arrivals=draw.choice([None, 1, 2]),
        seed=seed,
    )


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_the_cold_answers_at_random(shipped: Shipped, cold: Tokens, seed: int) -> None:
    greedy = SamplingParams(temperature=0.0, max_tokens=OUTPUT_TOKENS)
    serve(shipped, random_setting(seed), cold, greedy).check_reset()
