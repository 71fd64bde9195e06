"""One request's broken memory ends that request with a clear error, and nobody else notices."""

from __future__ import annotations

import pytest

from milepost.runtime.arena import Arena
from milepost.types import Batch, FinishReason
from tests.e2e.engines import BeforeStep, TestEngine, Toy, sixteen_requests

VICTIM = "r33"


def broken_page(what: str) -> BeforeStep:
    """Turn a page of the victim's KV or state into NaN once it has drawn five tokens."""

    def before_step(batch: Batch, arena: Arena) -> None:
        for row in batch.rows:
            if row.request_id == VICTIM and row.num_output_tokens == 5:
                arena.poison([row.block_table[1] if what == "kv" else row.state_table[0]])

    return before_step


@pytest.mark.parametrize("what", ["kv", "state"])
def test_non_finite_numbers_fail_one_request(toy: Toy, alone: dict[str, list[int]], what: str) -> None:
    """R50: the page that broke must not carry NaN to its next owner either."""
    requests = sixteen_requests(toy)
    engine = TestEngine(toy, num_pages=toy.pages_for(requests), before_step=broken_page(what))
    replies = engine.run(requests)
    victim = replies.pop(VICTIM)
    assert victim.finish_reason is FinishReason.ERROR
    assert victim.error is not None
    assert "hidden states are not finite" in victim.error
    assert victim.tokens == alone[VICTIM][:5]
    assert {name: reply.tokens for name, reply in replies.items()} == {
        name: tokens for name, tokens in alone.items() if name != VICTIM
    }
    assert engine.engine.failure is None
    later = engine.run([request for request in requests if request.request_id != VICTIM][:6])
    assert all(reply.tokens == alone[name] for name, reply in later.items())
