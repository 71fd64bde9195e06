"""The simulator against the engine: the same 200 requests, and the same tokens hit and computed, one by one.

The engine is the one that `load_engine` builds, with the shipped model; it is given the trace's clock,
because what is evicted depends on age. What it drew becomes the trace's output.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import NamedTuple

import pytest

from milepost.cli.shipped_model import shipped_model
from milepost.config import EngineConfig
from milepost.config_json import read_model_spec
from milepost.llm.loading import LoadedEngine, load_engine
from milepost.sim.replay.setup import parts_of
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RequestOutcome, RunResult, RunSpec
from milepost.sim.traces.trace import Trace, TraceRequest
from milepost.types import Request, SamplingParams
from tests.e2e.shipped import assistant, user

NUM_REQUESTS = 200
MEMORY = 12 << 20  # a few chats' worth: most of what is cached is evicted again
OUTPUT_TOKENS = 6


class Served(NamedTuple):
    """What a run tells of one request."""

    prompt: int
    hit: int


class Clock:
    """Stands where it is put."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@contextmanager
def engine_on(clock: Clock, policy: str, eviction: str) -> Iterator[LoadedEngine]:
    """The shipped model in an engine with its cache on `clock`."""
    loaded = load_engine(
        EngineConfig(
            model=str(shipped_model()), memory=MEMORY, threads=1, snapshot_policy=policy, eviction=eviction
        )
    )
    cache = loaded.engine._scheduler._cache
    assert cache is not None
    cache._clock = cache.evictor._clock = clock
    cache.evictor._refreshed_at = clock()
    try:
        yield loaded
    finally:
        loaded.engine.close()


def chats(loaded: LoadedEngine, seed: int = 5) -> list[TraceRequest]:
    """Turns of chats under two system prompts: they go on, are sent again, fork, or begin anew."""
    random = Random(seed)
    words = ["river", "stone", "amber", "code", "seven", "mile", "post", "light", "north", "wind", "salt"]

    def text(count: int) -> str:
        return " ".join(random.choices(words, k=count))

    systems = [text(60), text(25)]
    open_chats = [[user(f"{random.choice(systems)} {text(8)}")] for _ in range(6)]
    requests: list[TraceRequest] = []
    now = 0.0
    for number in range(NUM_REQUESTS):
        now += random.expovariate(0.5)
        chat = random.choice(open_chats)
        kind = random.random()
        if kind < 0.15:
            chat[:] = [user(f"{random.choice(systems)} {text(8)}")]
        elif kind < 0.75:
            chat += [assistant(text(random.randint(3, 20))), user(text(random.randint(3, 30)))]
        elif kind < 0.85 and len(chat) > 2:
            chat[-1] = user(text(12))  # the last question asked in another way
        if len(chat) > 13:
            del chat[4:]  # forgotten from the third question on
        encoded = loaded.encoding.encode(chat)
        requests.append(
            TraceRequest(
                request_id=str(number),
                arrival=now,
                prompt=encoded.token_ids,
                num_output=OUTPUT_TOKENS,
                message_ends=encoded.message_ends,
            )
        )
    return requests


def sampling_of(request: TraceRequest) -> SamplingParams:
    return SamplingParams(temperature=1.0, seed=int(request.request_id), max_tokens=request.num_output)


def serve(
    loaded: LoadedEngine, requests: list[TraceRequest], clock: Clock, *, at_once: bool
) -> tuple[dict[str, Served], list[TraceRequest]]:
    """Serve them one at a time or all at once; returns what each hit, and the trace with its output."""
    drawn: dict[str, list[int]] = {request.request_id: [] for request in requests}
    served: dict[str, Served] = {}

    def finish() -> None:
        while loaded.engine.has_work:
            for output in loaded.engine.step():
                drawn[output.request_id] += output.token_ids
                if output.finish_reason is not None:
                    assert output.usage is not None
                    served[output.request_id] = Served(output.usage.prompt_tokens, output.usage.cached_tokens)

    for request in requests:
        clock.now = 0.0 if at_once else request.arrival
        assert isinstance(request.prompt, tuple)
        loaded.engine.submit(
            Request(
                request_id=request.request_id,
                prompt_token_ids=request.prompt,
                sampling=sampling_of(request),
                message_ends=request.message_ends,
            )
        )
        if not at_once:
            finish()
    finish()
    recorded = [
        TraceRequest(
            request_id=request.request_id,
            arrival=0.0 if at_once else request.arrival,
            prompt=request.prompt,
            num_output=len(drawn[request.request_id]),
            output_ids=tuple(drawn[request.request_id]),
            message_ends=request.message_ends,
        )
        for request in requests
    ]
    return served, recorded


def simulate(
    loaded: LoadedEngine, requests: list[TraceRequest], policy: str, eviction: str, *, at_once: bool
) -> tuple[dict[str, Served], RunResult, Simulation]:
    """The same requests through the simulator, with the engine's sizes."""
    engine_layout, config = loaded.layout, loaded.config
    spec = RunSpec(
        model="milepost-toy-k3",
        budget_bytes=(config.num_pages - 1) * engine_layout.page_bytes,
        policy=policy,
        eviction=eviction,
        kv_itemsize=4,
        conv_itemsize=4,
        token_budget=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        queueing=at_once,
    )
    trace = Trace(name="recorded", form="token-ids", requests=requests, block_size=1)
    parts = parts_of(spec, trace, read_model_spec(shipped_model()))
    assert parts.layout.page_bytes == engine_layout.page_bytes
    outcomes: dict[str, Served] = {}

    def note(outcome: RequestOutcome) -> None:
        outcomes[outcome.request_id] = Served(outcome.prompt_tokens, outcome.hit_tokens)

    simulation = Simulation(spec, trace, parts, on_request=note)
    return outcomes, simulation.run(), simulation


@pytest.mark.parametrize(
    ("policy", "eviction", "at_once"),
    [
        ("adaptive", "value", False),
        ("turns+branch+every(48)", "lru", False),
        ("adaptive", "value", True),
    ],
)
def test_hits_and_computed_tokens_are_the_engines(policy: str, eviction: str, at_once: bool) -> None:
    clock = Clock()
    with engine_on(clock, policy, eviction) as loaded:
        real, recorded = serve(loaded, chats(loaded), clock, at_once=at_once)
        stats = loaded.engine.stats()
        simulated, result, simulation = simulate(loaded, recorded, policy, eviction, at_once=at_once)
    assert len(real) == NUM_REQUESTS
    assert simulated == real
    again = simulation._scheduler.stats()
    assert again.computed_tokens == stats.scheduler.computed_tokens
    assert again.preemptions == stats.scheduler.preemptions
    assert stats.cache is not None
    assert result.hit_tokens == stats.cache.hit_tokens > 20_000
    assert result.losses == stats.cache.losses
    assert result.snapshots_written == stats.cache.snapshots_written
    assert simulation._setup.cache.stats().evicted_snapshots == stats.cache.evicted_snapshots > 100
