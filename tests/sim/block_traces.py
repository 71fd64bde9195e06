"""Small traces of blocks, and what unlimited memory would hit on them, counted without the engine."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random

from milepost.sim.replay.setup import parts_of
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RunResult, RunSpec
from milepost.sim.traces.block_tokens import BlockTokens, runs_of
from milepost.sim.traces.trace import Trace, TraceRequest
from tests.model_specs import SMALL

Places = Callable[[TraceRequest, int], Iterable[int]]


def block_trace(prompts: Sequence[tuple[Sequence[int], int]], block_size: int = 64) -> Trace:
    """A trace of (block ids, tokens), one a second."""
    requests = [
        TraceRequest(
            request_id=str(number),
            arrival=float(number),
            prompt=BlockTokens(runs_of(ids), tokens, block_size),
            num_output=3,
            message_ends=(tokens,),
        )
        for number, (ids, tokens) in enumerate(prompts)
    ]
    return Trace(name="small", form="made", requests=requests, block_size=block_size)


def timed_trace(*requests: tuple[float, Sequence[int], int], block_size: int = 64) -> Trace:
    """A trace of (arrival, ids of whole blocks, output tokens)."""
    return Trace(
        name="made",
        form="made",
        requests=[
            TraceRequest(
                request_id=str(number),
                arrival=arrival,
                prompt=BlockTokens(runs_of(ids), len(ids) * block_size, block_size),
                num_output=output,
                message_ends=(len(ids) * block_size,),
            )
            for number, (arrival, ids, output) in enumerate(requests)
        ],
        block_size=block_size,
    )


def random_trace(seed: int, num_requests: int = 60, block_size: int = 64) -> Trace:
    """Conversations that go on, fork and begin anew, with prompts that end anywhere in a block."""
    random = Random(seed)
    chats: list[list[int]] = []
    prompts: list[tuple[list[int], int]] = []
    fresh = 0

    def new_blocks(count: int) -> list[int]:
        nonlocal fresh
        fresh += count
        return list(range(fresh - count, fresh))

    system = new_blocks(3)
    for _ in range(num_requests):
        kind = random.random()
        if not chats or kind < 0.3:
            blocks = (system if random.random() < 0.6 else []) + new_blocks(random.randint(1, 9))
        elif kind < 0.8:
            blocks = random.choice(chats) + new_blocks(random.randint(0, 5))
        else:
            parent = random.choice(chats)
            blocks = parent[: random.randint(1, len(parent))] + new_blocks(random.randint(1, 4))
        chats.append(blocks)
        partial = random.choice((0, random.randint(1, block_size - 1)))
        tail = new_blocks(1) if partial else []
        prompts.append((blocks + tail, len(blocks) * block_size + partial))
    return block_trace(prompts, block_size)


def replay(trace: Trace, policy: str, eviction: str = "lru", budget: int | None = None) -> RunResult:
    """One run on a model of a few kilobytes."""
    spec = RunSpec(model="small", policy=policy, eviction=eviction, budget_bytes=budget)
    return Simulation(spec, trace, parts_of(spec, trace, SMALL)).run()


def expected_hits(trace: Trace, places: Places) -> tuple[int, int]:
    """(tokens hit, snapshots left) when nothing is ever evicted.

    A request hits the deepest snapshot at or before the longest prefix that it shares with any before,
    but never its last token. `places` says where it leaves its own, given what it shares.
    """
    size = trace.block_size
    stored: set[int] = set()  # a chained block id is a prefix; snapshots by the id of the block they end
    seen: set[int] = set()
    hits = written = 0
    for request in trace.requests:
        assert isinstance(request.prompt, BlockTokens)
        ids = request.prompt.block_ids(0, request.num_prompt // size)
        shared = next((n for n, block_id in enumerate(ids) if block_id not in seen), len(ids))
        usable = [n for n in range(1, shared + 1) if ids[n - 1] in stored and n * size < request.num_prompt]
        hits += max(usable, default=0) * size
        seen.update(ids)
        for place in {place // size for place in places(request, shared * size)}:
            if place > max(usable, default=0) and ids[place - 1] not in stored:
                stored.add(ids[place - 1])
                written += 1
    return hits, written
