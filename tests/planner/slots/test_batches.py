"""The largest batch that memory holds, against counting by hand."""

from __future__ import annotations

import pytest

from milepost.errors import ConfigError
from milepost.memory.capacity import max_sequences
from milepost.memory.named_layout import simulated_layout
from milepost.planner.slots.batches import batch_bytes, constant_slots, max_batch, slot_batches
from milepost.sim.models import find_model
from tests.model_specs import SMALL

K3 = find_model("kimi-k3")[1]
PAGED = simulated_layout("paged", K3, block_size=64, kv_itemsize=1)
"""Pages of 884,736 bytes, 508 of them a state, one for 64 tokens."""


def test_one_slot_is_what_the_allocator_says() -> None:
    for pages in (1, 508, 509, 510, 5_000, 60_000):
        for context in (1, 64, 65, 12_000):
            found = max_batch(PAGED, pages * PAGED.page_bytes, context, constant_slots(1))
            assert found == max_sequences(PAGED, pages, context)


def test_kimi_k3_by_hand() -> None:
    """12,288 tokens are 192 pages: 700 with one state, 2,732 with five; 62,500 pages less the dummy one."""
    memory = 62_500 * PAGED.page_bytes
    assert max_batch(PAGED, memory, 12_288, constant_slots(1)) == 62_499 // 700 == 89
    assert max_batch(PAGED, memory, 12_288, constant_slots(5)) == 62_499 // 2_732 == 22
    # four states more for all together
    assert max_batch(PAGED, memory, 12_288, lambda batch: batch + 4) == (62_499 - 4 * 508) // 700 == 86


def test_the_batch_fits_and_one_more_does_not() -> None:
    layout = simulated_layout("paged", SMALL, block_size=64)

    def uneven(batch: int) -> int:
        return batch + max(3, batch // 4)

    for pages in range(1, 400, 7):
        memory = pages * layout.page_bytes
        found = max_batch(layout, memory, 100, uneven)
        usable = (pages - 1) * layout.page_bytes
        assert not found or batch_bytes(layout, found, 100, uneven) <= usable
        assert batch_bytes(layout, found + 1, 100, uneven) > usable


def test_rows_of_a_table() -> None:
    memory = 62_500 * PAGED.page_bytes
    charges = {"five": constant_slots(5), "one": constant_slots(1)}
    rows = slot_batches(PAGED, memory, (12_288, 131_072), charges)
    assert [(row.context_tokens, row.charged, row.max_batch) for row in rows] == [
        (12_288, "five", 22),
        (12_288, "one", 89),
        (131_072, "five", 62_499 // (5 * 508 + 2048)),
        (131_072, "one", 62_499 // (508 + 2048)),
    ]
    for row in rows:
        assert row.slots == row.max_batch * (5 if row.charged == "five" else 1)
        assert row.state_bytes + row.kv_bytes <= memory


def test_no_room() -> None:
    (row,) = slot_batches(PAGED, 10**6, (64,), {"one": constant_slots(1)})
    assert (row.max_batch, row.slots, row.kv_bytes) == (0, 0, 0)


@pytest.mark.parametrize(("each", "context", "words"), [(0, 64, "state slots"), (1, 0, "context_tokens")])
def test_nonsense(each: int, context: int, words: str) -> None:
    with pytest.raises(ConfigError, match=f"{words}.* at least 1. Given: 0"):
        max_batch(PAGED, 10**9, context, constant_slots(each))
