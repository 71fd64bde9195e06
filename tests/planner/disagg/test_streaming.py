"""Transfers that begin while prefill runs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from milepost.planner.disagg.streaming import Chunk, exposed_seconds, transfer_exposed

SECONDS = st.floats(1e-3, 10)
BYTES = st.floats(1, 1e9)
CHUNKS = st.lists(st.builds(Chunk, SECONDS, BYTES), min_size=1, max_size=6)


def test_a_link_sends_what_is_ready() -> None:
    # Ready at 1 and 2; 3 s each at one byte a second: 4 and 7, five behind the end at 2.
    assert exposed_seconds([(1.0, 3.0), (2.0, 3.0)], 2.0, 1.0) == 5.0
    assert exposed_seconds([(0.0, 1.0)], 2.0, 1.0) == 0.0


@given(CHUNKS, BYTES, BYTES, st.integers(1, 100), st.floats(1e3, 1e12))
def test_streaming_never_exposes_more_than_a_whole_transfer(
    chunks: list[Chunk], state: float, cached: float, layers: int, rate: float
) -> None:
    exposed = transfer_exposed(chunks, state, cached, layers, rate)
    everything = sum(chunk.kv_bytes for chunk in chunks) + state + cached
    end = sum(chunk.seconds for chunk in chunks)
    assert exposed.whole == pytest.approx(everything / rate, abs=1e-9)
    least = max(0.0, everything / rate - end)
    for streamed in (exposed.chunk_wise, exposed.layer_wise):
        assert least - 1e-6 <= streamed <= exposed.whole * (1 + 1e-9) + 1e-9
    last = chunks[-1].kv_bytes + state
    assert exposed.chunk_wise >= last / rate - 1e-9
    assert exposed.layer_wise >= last / layers / rate - 1e-9


def test_a_fast_link_leaves_a_layer_of_the_last_chunk() -> None:
    exposed = transfer_exposed([Chunk(1.0, 800.0), Chunk(1.0, 800.0)], 200.0, 0.0, 10, 1e6)
    assert exposed.chunk_wise == pytest.approx((800 + 200) / 1e6)
    assert exposed.layer_wise == pytest.approx((800 + 200) / 10 / 1e6)


def test_a_slow_link_is_busy_from_the_first_piece_on() -> None:
    exposed = transfer_exposed([Chunk(1.0, 800.0), Chunk(1.0, 800.0)], 0.0, 0.0, 1, 100.0)
    assert exposed.chunk_wise == pytest.approx(1.0 + 16.0 - 2.0)
    assert exposed.whole == pytest.approx(16.0)


def test_what_was_cached_leaves_at_once() -> None:
    cold = transfer_exposed([Chunk(1.0, 100.0)], 0.0, 0.0, 1, 1000.0)
    hit = transfer_exposed([Chunk(1.0, 100.0)], 0.0, 900.0, 1, 1000.0)
    assert hit.chunk_wise == cold.chunk_wise
    assert hit.whole > cold.whole
