"""Presets by name, and what each of them finds on small traces, counted by hand or by brute force."""

from __future__ import annotations

from collections import OrderedDict

import pytest

from milepost.errors import ConfigError
from milepost.sim.presets import PRESETS, explain_preset, find_preset
from milepost.sim.replay.endless_pool import EndlessPool
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RequestOutcome, RunResult, RunSpec
from milepost.sim.traces.block_tokens import BlockTokens
from milepost.sim.traces.trace import Trace, TraceRequest
from tests.model_specs import SMALL
from tests.sim.block_traces import block_trace, random_trace

KV_BYTES = len(SMALL.mla_layers) * SMALL.mla.row_dim * 2  # of a token


def run(
    name: str, trace: Trace, budget_bytes: int | None = None, token_budget: int = 8192
) -> tuple[RunResult, list[int]]:
    """The result, and the hit of each request; the cache is proven afterwards."""
    outcomes: list[RequestOutcome] = []
    spec = RunSpec(preset=name, budget_bytes=budget_bytes, token_budget=token_budget)
    preset = find_preset(name)
    assert preset is not None
    simulation = Simulation(spec, trace, preset.parts(spec, trace, SMALL), None, outcomes.append)
    result = simulation.run()
    if not isinstance(simulation._setup.parts.pool, EndlessPool):  # that one has too many pages to look at
        simulation._setup.cache.check()
        simulation._setup.parts.pool.check()
    return result, [outcome.hit_tokens for outcome in outcomes]


def ids_of(request: TraceRequest) -> list[int]:
    """The blocks of a prompt, the partly filled last one included."""
    assert isinstance(request.prompt, BlockTokens)
    return [block_id for blocks in request.prompt.runs for block_id in blocks]


def shared_blocks(trace: Trace) -> list[int]:
    """Tokens of the longest prefix of whole blocks that any earlier prompt has; all but the last token."""
    seen: set[int] = set()
    hits = []
    for request in trace.requests:
        ids = ids_of(request)[: request.num_prompt // trace.block_size]
        count = 0
        while count < len(ids) and ids[count] in seen:
            count += 1
        if count * trace.block_size == request.num_prompt:
            count -= 1  # the last token is computed, and only whole units are found
        hits.append(max(0, count) * trace.block_size)
        seen.update(ids)
    return hits


class TrieLru:
    """Blocks in a trie; the leaf that was used longest ago goes: the semantics of published simulators."""

    def __init__(self, capacity: int, block_size: int) -> None:
        self._capacity = capacity
        self._block_size = block_size
        self._used: OrderedDict[tuple[int, ...], None] = OrderedDict()

    def hit(self, request: TraceRequest) -> int:
        """Tokens found; then the prompt is cached."""
        size = self._block_size
        ids = tuple(ids_of(request))
        path = [ids[: end + 1] for end in range(len(ids))]
        found = 0
        while found < len(path) and path[found] in self._used:
            found += 1
        tokens = min(found * size, request.num_prompt)
        for node in path[:found]:
            self._used.move_to_end(node)
        for node in path[found:]:
            if len(self._used) >= self._capacity and not self._evict(set(path)):
                break
            self._used[node] = None
        return tokens

    def _evict(self, protected: set[tuple[int, ...]]) -> bool:
        inner = {node[:-1] for node in self._used}
        for node in self._used:
            if node not in inner and node not in protected:
                del self._used[node]
                return True
        return False


@pytest.mark.parametrize("seed", range(4))
def test_unlimited_is_the_prefix_bound(seed: int) -> None:
    trace = random_trace(seed)
    assert run("unlimited", trace, 1)[1] == shared_blocks(trace)


@pytest.mark.parametrize("seed", range(4))
def test_stateless_finds_as_much_as_a_trie_of_blocks(seed: int) -> None:
    trace = random_trace(seed, 300)
    capacity = 60
    reference = TrieLru(capacity, trace.block_size)
    expected = sum(reference.hit(request) for request in trace.requests)
    result, hits = run("stateless", trace, capacity * trace.block_size * KV_BYTES)
    # An exact resend computes its last block again, and a running request holds a block more at most.
    assert sum(hits) == pytest.approx(expected, rel=0.04)
    assert result.state_bytes_mean == 0
    without, _ = run("unlimited", trace)
    assert result.hit_tokens < without.hit_tokens


def test_stateless_goes_from_the_end_of_the_longest_unused_path() -> None:
    one, other = [1, 2, 3, 4], [11, 12, 13, 14]
    prompts = [(one, 256), (other, 256), ([*one[:2], 9], 192), ([21, 22, 23], 192), (one, 256), (other, 256)]
    _, hits = run("stateless", block_trace(prompts), 9 * 64 * KV_BYTES)
    # `one`'s beginning was refreshed by the third prompt, its end was not and goes first, then `other`'s.
    assert hits[:5] == [0, 0, 128, 0, 128]
    assert hits[5] < 192


def test_a_state_of_no_pages_is_copied_once() -> None:
    """A chunked prompt that resumes: its later chunks must not look for the copy's source again."""
    blocks = list(range(40))
    trace = block_trace([(blocks[:4], 256), (blocks, 2560)])
    assert run("stateless", trace, 10**9, token_budget=64)[1] == [0, 256]


def test_vllm_keeps_states_where_chunks_of_whole_blocks_end() -> None:
    spec = RunSpec(preset="vllm", token_budget=1000)
    preset = find_preset("vllm(alignment=64)")
    assert preset is not None
    trace = block_trace([([*range(60)], 3800)])
    parts = preset.parts(spec, trace, SMALL)
    block = parts.layout.block_size
    result, _ = run("vllm(alignment=64)", trace, token_budget=2 * block)
    last = 3799 // block
    ends = {*range(2, last, 2), last}
    tail = 3799 // 64 * 64
    assert result.snapshots_written == len({*(end * block for end in ends), tail})
    only_last, _ = run("vllm(alignment=64,retention=0)", trace, token_budget=2 * block)
    assert only_last.snapshots_written == len({last * block, tail})
    every_fourth, _ = run(f"vllm(alignment=64,retention={4 * block})", trace, token_budget=2 * block)
    fourth = {end * block for end in ends if end % 4 == 0}
    assert every_fourth.snapshots_written == len({*fourth, last * block, tail})


def test_vllm_finds_a_parting_the_second_time() -> None:
    shared = [*range(20)]
    trace = block_trace([(shared + [100 + 9 * i + j for j in range(8)], 28 * 64) for i in range(3)])
    assert run("vllm(retention=0)", trace)[1] == [0, 0, 20 * 64]


def test_sglang_keeps_as_many_states_as_it_has_slots() -> None:
    state_bytes = find_parts_state_bytes()
    budget = 20 * state_bytes
    trace = random_trace(3, 200)
    spec = RunSpec(preset="sglang", budget_bytes=budget)
    preset = find_preset("sglang")
    assert preset is not None
    parts = preset.parts(spec, trace, SMALL)
    simulation = Simulation(spec, trace, parts)
    most = 0

    def watch(outcome: RequestOutcome) -> None:  # the callback's signature
        nonlocal most
        most = max(most, simulation._setup.cache.index.num_snapshots)

    simulation._recorder._on_request = watch
    simulation.run()
    slots = int(budget * 0.9 / 1.9) // state_bytes
    # Three are the running request's, even while it ends.
    assert most == slots - 3
    assert parts.max_num_seqs == slots // 5
    simulation._setup.cache.check()


def find_parts_state_bytes() -> int:
    preset = find_preset("sglang")
    assert preset is not None
    return preset.parts(RunSpec(), random_trace(0, 3), SMALL).state_bytes


def test_sglang_drops_the_state_of_the_longest_unused_path() -> None:
    state_bytes = find_parts_state_bytes()
    # Five slots: three are held, two states stay.
    budget = int(5.5 * state_bytes * 1.9 / 0.9)
    one, two, three = ([10 * i + j for j in range(3)] for i in (1, 2, 3))
    prompts = [([*ids, end], 250) for end, ids in enumerate((one, two, one, three, one, two), 100)]
    # `three` takes the slot of `two`, not of `one`, which was used in between.
    assert run("sglang", block_trace(prompts), budget)[1] == [0, 0, 192, 0, 192, 0]


def test_sglang_refuses_a_budget_without_room_for_a_request() -> None:
    with pytest.raises(
        ConfigError, match=r"preset sglang needs a budget of at least [\d,]+ bytes.*Given: 1,000"
    ):
        run("sglang", random_trace(0, 3), 1000)


def test_marconi_is_leaf_and_branch_with_recency_alone_by_default() -> None:
    trace = random_trace(5, 150)
    preset = find_preset("marconi")
    assert preset is not None
    budget = 12 * find_parts_state_bytes()
    result, hits = run("marconi", trace, budget)
    assert result.eviction == "lru"
    assert 0 < sum(hits) < sum(run("marconi", trace)[1])
    weighted, _ = run("marconi(alpha=1)", trace, budget)
    assert weighted.eviction == "marconi(alpha=1)"
    assert weighted.hit_tokens != result.hit_tokens


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_says_where_it_is_from_and_what_it_leaves_out(name: str) -> None:
    text = explain_preset(name)
    preset = find_preset(name)
    assert preset is not None
    assert preset.name == name
    assert preset.source in text
    assert all(sentence.endswith(".") and sentence in text for sentence in preset.simplifications)


@pytest.mark.parametrize(
    "name",
    [
        "vllm(retention=8192)",
        "vllm(alignment=64)",
        "sglang(ratio=0.5)",
        "sglang(chunk=8192)",
        "marconi(alpha=1)",
    ],
)
def test_a_preset_is_called_as_it_was_asked_for(name: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    assert preset.name == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vlm", "Did you mean 'vllm'"),
        ("vllm+sglang", "takes one name"),
        ("vllm(retenton=3)", "no parameter 'retenton'.*Did you mean 'retention'"),
        ("vllm(retention=0.5)", "whole number"),
        ("marconi(alpha=-1)", "between 0 and"),
        ("sglang(ratio=nan)", "between 0.001 and"),
        ("stateless(tails=2)", "between 0 and 1"),
    ],
)
def test_a_wrong_name_or_value_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_preset(name)


def test_no_name_is_no_preset() -> None:
    assert find_preset("") is None


@pytest.mark.parametrize(
    "text", ["marconi(alpha=1000000)", "marconi(alpha=0.00001)", "sglang(ratio=0.12345678)"]
)
def test_a_full_name_is_read_as_the_same_preset(text: str) -> None:
    preset = find_preset(text)
    assert preset is not None
    assert preset.name == text
