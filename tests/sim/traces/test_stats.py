"""What a trace holds; the prefix bound against a plain count, and against what was published."""

from __future__ import annotations

import time
from random import Random

import pytest

from milepost.sim.runs import RunSpec
from milepost.sim.sweep.point import run_point
from milepost.sim.traces.chains import Chainer, is_chained
from milepost.sim.traces.stats import overlaps, stats_of
from milepost.sim.traces.trace import Trace, TraceRequest
from tests.sim.block_traces import block_trace, random_trace
from tests.sim.traces.files import MOONCAKE, SESSIONS, ids_of, raw_rows, read, whole


def plain_overlaps(prompts: list[tuple[int, ...]]) -> list[int]:
    """Length of each prompt's longest beginning that is an earlier one's."""
    seen: set[tuple[int, ...]] = set()
    found = []
    for prompt in prompts:
        found.append(max((n for n in range(1, len(prompt) + 1) if prompt[:n] in seen), default=0))
        seen |= {prompt[:n] for n in range(1, len(prompt) + 1)}
    return found


def random_prompts(seed: int, letters: int) -> list[tuple[int, ...]]:
    """Prompts over few letters, which meet and part everywhere."""
    random = Random(seed)
    prompts: list[tuple[int, ...]] = []
    for _ in range(60):
        old = random.choice(prompts) if prompts and random.random() < 0.7 else ()
        new = [random.randrange(letters) for _ in range(random.randrange(1, 12))]
        prompts.append((*old[: random.randint(0, len(old))], *new))
    return prompts


@pytest.mark.parametrize("seed", range(20))
def test_chains_number_prefixes(seed: int) -> None:
    """Equal prefixes have equal numbers, different ones different numbers, and nothing else counts."""
    prompts = random_prompts(seed, letters=2 + seed % 3)
    chainer = Chainer()
    numbers: dict[tuple[int, ...], int] = {}
    found = []
    for prompt in prompts:
        runs, known = chainer.add(prompt)
        found.append(known)
        for place, number in enumerate([number for run in runs for number in run], 1):
            assert numbers.setdefault(prompt[:place], number) == number
    assert found == plain_overlaps(prompts)
    assert len(set(numbers.values())) == len(numbers) == chainer.num_ids
    chained = [(chainer.add(prompt)[0], 0) for prompt in prompts]
    blocks = block_trace(
        [
            ([n for run in runs for n in run], 64 * len(p))
            for (runs, _), p in zip(chained, prompts, strict=True)
        ]
    )
    assert is_chained(request.prompt for request in blocks.requests)  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(20))
def test_ids_that_are_not_chained_are_found(seed: int) -> None:
    """Against the plain rule: an id has one id before it, everywhere."""
    random = Random(seed)
    for _ in range(200):
        prompts = [[random.randrange(6) for _ in range(random.randrange(1, 4))] for _ in range(2)]
        before: dict[int, set[int]] = {}
        for prompt in prompts:
            for earlier, later in zip([-1, *prompt], prompt, strict=False):
                before.setdefault(later, set()).add(earlier)
        trace = block_trace([(prompt, 64 * len(prompt)) for prompt in prompts])
        expected = all(len(ids) == 1 for ids in before.values())
        assert is_chained(request.prompt for request in trace.requests) == expected  # type: ignore[misc]


@pytest.mark.parametrize("seed", range(10))
def test_token_overlaps(seed: int) -> None:
    prompts = random_prompts(seed, letters=3)
    requests = [TraceRequest(request_id=str(n), arrival=n, prompt=prompt) for n, prompt in enumerate(prompts)]
    trace = Trace(name="t", form="token-ids", requests=requests, block_size=1)
    # The last token of a prompt is always computed.
    expected = [min(n, len(prompt) - 1) for n, prompt in zip(plain_overlaps(prompts), prompts, strict=True)]
    assert overlaps(trace) == expected


def test_no_cache_hits_more_than_the_bound() -> None:
    """A conversation sends its replies back: what was drawn is reused, but for the last token of a reply."""
    random = Random(0)
    prompt, requests = tuple(random.randrange(1000) for _ in range(50)), []
    for turn in range(8):
        reply = tuple(random.randrange(1000) for _ in range(37))
        requests.append(
            TraceRequest(
                request_id=str(turn), arrival=60.0 * turn, prompt=prompt, num_output=37, output_ids=reply
            )
        )
        prompt = (*prompt, *reply, *(random.randrange(1000) for _ in range(20)))
    trace = Trace(name="t", form="token-ids", requests=requests, block_size=1)
    bound = stats_of(trace).prefix_bound_tokens
    assert bound == sum(50 + 57 * turn + 36 for turn in range(7))
    for spec in (RunSpec(model="milepost-toy-k3"), RunSpec(model="milepost-toy-k3", preset="unlimited")):
        assert 0.8 * bound < run_point(spec, trace).hit_tokens <= bound


@pytest.mark.parametrize("trace", [random_trace(1), random_trace(2), read(MOONCAKE), read(SESSIONS)])
def test_block_overlaps(trace: Trace) -> None:
    """Only full blocks count."""
    size = trace.block_size
    seen: set[int] = set()
    expected = []
    for request, ids in zip(trace.requests, ids_of(trace), strict=True):
        full = ids[: request.num_prompt // size]
        expected.append(size * sum(block_id in seen for block_id in full))
        seen.update(ids)
    assert overlaps(trace) == expected


def test_stats_of_the_sample() -> None:
    rows = raw_rows(MOONCAKE)
    found = stats_of(read(MOONCAKE))
    assert found.requests == 300
    assert found.sessions is None
    assert found.turns is None
    assert found.input_tokens == sum(row["input_length"] for row in rows)
    assert found.output_tokens == sum(row["output_length"] for row in rows)
    assert found.seconds == rows[-1]["timestamp"] / 1000
    assert found.requests_per_second == pytest.approx(300 / found.seconds)
    assert found.input.max == max(row["input_length"] for row in rows)
    assert found.prefix_bound_tokens == sum(overlaps(read(MOONCAKE)))
    assert found.new_beginnings == pytest.approx(1 / 300)
    assert found.overlap is not None
    assert found.overlap.mean == pytest.approx(found.prefix_bound_tokens / 300)


def test_stats_of_sessions() -> None:
    found = stats_of(read(SESSIONS))
    assert found.sessions == 11
    assert found.turns is not None
    assert found.turns.mean == pytest.approx(found.requests / 11)


def test_stats_of_one_moment() -> None:
    assert stats_of(block_trace([([0], 64)])).requests_per_second is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "requests", "input_tokens", "bound", "seconds"),
    [
        ("mooncake-conversation.jsonl.gz", 12_031, 144_793_823, "37.34%", 0.5),
        ("claude-code-sessions.jsonl.gz", 24_015, 3_012_680_174, "96.31%", 2.0),
    ],
)
def test_whole_traces(name: str, requests: int, input_tokens: int, bound: str, seconds: float) -> None:
    """Figures that were published of them, and how long reading may take."""
    path = whole(name)
    read(path, first=10)  # imports, and the file into memory
    begin = time.process_time()
    trace = read(path)
    assert time.process_time() - begin < seconds
    found = stats_of(trace)
    assert (found.requests, found.input_tokens) == (requests, input_tokens)
    assert f"{found.prefix_bound:.2%}" == bound


def test_a_block_that_was_only_partly_filled_is_not_shared_when_another_prompt_fills_it() -> None:
    trace = block_trace([(range(2), 100), (range(3), 192), (range(3), 192), (range(4), 193)])
    assert overlaps(trace) == [0, 64, 192, 192]
