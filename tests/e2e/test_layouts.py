"""The aligned layout draws what the paged one draws, however long its blocks are.

Free pages are poisoned here too, so padding inside slots, empty slots and blocks' unwritten ends are NaN.
"""

from __future__ import annotations

import pytest

from milepost.config import EngineConfig
from milepost.llm.loading import load_engine
from milepost.memory.aligned import AlignedLayout, aligned_layout
from milepost.memory.capacity import sequence_pages
from milepost.memory.reuse_notes import reuse_notes
from tests.e2e.engines import TestEngine, Toy, final_length, sixteen_requests, tokens_of

Tokens = dict[str, list[int]]


def on_aligned(toy: Toy, kernel_alignment: int) -> Toy:
    layout = aligned_layout(toy.model.spec, kernel_alignment=kernel_alignment, kv_itemsize=4, conv_itemsize=4)
    return Toy(toy.folder, toy.model, layout)


@pytest.fixture(params=[1, 300])
def aligned(request: pytest.FixtureRequest, toy: Toy) -> Toy:
    """Blocks barely as long as a state is large, and longer than any sequence."""
    return on_aligned(toy, request.param)


def test_the_layouts_differ(toy: Toy, aligned: Toy) -> None:
    assert isinstance(aligned.layout, AlignedLayout)
    assert aligned.layout.pages_per_block == 1
    assert aligned.layout.block_size > toy.layout.block_size
    assert aligned.layout.first_conv_tiles != toy.layout.first_conv_tiles


def test_the_same_tokens_in_a_batch(aligned: Toy, alone: Tokens) -> None:
    requests = sixteen_requests(aligned)
    engine = TestEngine(aligned, num_pages=aligned.pages_for(requests), budget=48)
    assert tokens_of(engine.run(requests)) == alone


def test_blocks_of_thousands_of_tokens(toy: Toy, alone: Tokens) -> None:
    aligned = on_aligned(toy, 5000)
    requests = sixteen_requests(aligned)[5::9]
    replies = tokens_of(TestEngine(aligned, num_pages=aligned.pages_for(requests)).run(requests))
    assert replies == {name: alone[name] for name in replies}


def test_preempted_at_random(aligned: Toy, alone: Tokens) -> None:
    requests = sixteen_requests(aligned)[::3]
    engine = TestEngine(aligned, num_pages=aligned.pages_for(requests), budget=64, preempt=0.2, seed=1)
    replies = tokens_of(engine.run(requests))
    assert replies == {name: alone[name] for name in replies}
    assert engine.scheduler.stats().preemptions > 0


def test_the_smallest_pool_that_holds_the_longest_request(aligned: Toy, alone: Tokens) -> None:
    requests = sixteen_requests(aligned)[1::4]
    longest = max(final_length(request) for request in requests)
    engine = TestEngine(aligned, num_pages=1 + sequence_pages(aligned.layout, longest - 1), budget=64)
    replies = tokens_of(engine.run(requests))
    assert replies == {name: alone[name] for name in replies}


def test_replies_that_outgrow_their_blocks_together(toy: Toy, alone: Tokens) -> None:
    """Pages for a block each: who grows into the next one takes it from the last in line."""
    aligned = on_aligned(toy, 1)
    size = aligned.layout.block_size
    requests = [r for r in sixteen_requests(aligned) if len(r.prompt_token_ids) <= size < final_length(r)]
    assert len(requests) > 2
    room = sum(sequence_pages(aligned.layout, len(r.prompt_token_ids)) for r in requests)
    engine = TestEngine(aligned, num_pages=1 + room, budget=64)
    replies = tokens_of(engine.run(requests))
    assert replies == {name: alone[name] for name in replies}
    assert engine.scheduler.stats().preemptions > 0


def test_the_options_layout_is_the_engines(toy: Toy) -> None:
    """One option, from the command line's config to the arena."""
    options = {"block_size": 16, "memory": "16MiB", "max_model_len": 17}
    loaded = load_engine(EngineConfig.from_options({"model": toy.folder, "layout": "aligned"} | options))
    try:
        assert loaded.layout == on_aligned(toy, 16).layout
        assert loaded.config.num_pages == (16 << 20) // loaded.layout.page_bytes
        assert loaded.config.notes == reuse_notes(loaded.layout, 17, 16) != ()
    finally:
        loaded.engine.close()
