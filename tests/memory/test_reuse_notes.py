"""What is said at start about long blocks and long match units (R02, R14, R26)."""

from __future__ import annotations

import pytest

from milepost.config import EngineConfig
from milepost.errors import ConfigError
from milepost.memory.aligned import aligned_layout
from milepost.memory.layout import paged_layout
from milepost.memory.named_layout import named_layout
from milepost.memory.reuse_notes import reuse_notes
from milepost.memory.sizing import resolve
from tests.model_specs import K3, SMALL

PAGED = paged_layout(K3, tensor_parallel=8)
GROWN = aligned_layout(K3, tensor_parallel=8, kernel_alignment=128, kv_itemsize=1)  # 1,536 tokens


def test_nothing_is_said_where_nothing_is_amiss() -> None:
    for match_unit in (None, 1, 16, 64):
        assert reuse_notes(PAGED, 4_096, match_unit) == ()
        assert reuse_notes(GROWN, 4_096, match_unit) == ()
    assert reuse_notes(GROWN, 1_536) == ()


def test_a_block_longer_than_any_sequence() -> None:
    """R14: a block over max_model_len is said at start, not found out by wondering about misses."""
    (note,) = reuse_notes(GROWN, 1_535)
    assert note.startswith("A KV block of 1,536 tokens is longer than max_model_len 1,535: ")
    assert "takes a whole one (20.2 MiB)" in note
    assert "Choose the paged layout, a smaller block_size, or a larger max_model_len." in note
    assert reuse_notes(GROWN, 1_535, 16) == (note,)


@pytest.mark.parametrize("max_model_len", [1_538, 100_000])
def test_the_shortest_prompt_that_can_hit(max_model_len: int) -> None:
    """R02, R26: keys a block apart share nothing of a prompt shorter than a block."""
    (note,) = reuse_notes(GROWN, max_model_len, 1_536)
    assert note.startswith(
        "Prefix keys stand every 1,536 tokens (match_unit): prompts that share fewer share"
    )
    assert "a prompt needs 1,537 tokens to hit one" in note


@pytest.mark.parametrize("max_model_len", [2, 1_536, 1_537])
def test_a_key_that_no_prompt_reaches(max_model_len: int) -> None:
    """R14: the first key stands where no prompt can hit it, since its last token is always computed."""
    note = reuse_notes(GROWN, max_model_len, 1_536)[-1]
    assert note.startswith("No prefix can be hit at a prefix key: the first stands at token 1,536")
    assert f"a prompt holds at most {max_model_len - 1:,} tokens" in note


@pytest.mark.parametrize(
    ("max_model_len", "match_unit", "advice"),
    [
        (2, 16, "Set max_model_len to more than 2,"),
        (3, 16, "Set match_unit to less than 2, such as 1,"),
        (17, 16, "Set match_unit to less than 16, such as 8,"),
        (18, 17, "Set match_unit to less than 17, such as 16,"),
        (33, 64, "Set match_unit to less than 32, such as 16,"),
        (4_096, 65, "Set match_unit to less than 65, such as 16,"),
    ],
)
def test_the_advice_helps(max_model_len: int, match_unit: int, advice: str) -> None:
    """What a note proposes is finer than what is set, and a prompt can reach it."""
    assert advice in reuse_notes(PAGED, max_model_len, match_unit)[-1]


@pytest.mark.parametrize(("layout", "num_notes"), [("paged", 0), ("aligned", 1)])
def test_notes_are_part_of_the_resolved_numbers(layout: str, num_notes: int) -> None:
    config = EngineConfig(model="m", memory="1MiB", block_size=16, layout=layout, max_model_len=31)
    cut = named_layout(config.layout, SMALL, **config.layout_options())
    resolved = resolve(config, SMALL, cut)
    assert len(resolved.notes) == num_notes
    assert resolved.notes == reuse_notes(cut, 31)


def test_too_little_memory_for_grown_blocks_names_the_other_layout() -> None:
    config = EngineConfig(model="m", memory=8192, block_size=16, layout="aligned")
    cut = named_layout(config.layout, SMALL, **config.layout_options())
    with pytest.raises(ConfigError, match="or choose the paged layout, whose pages are smaller"):
        resolve(config, SMALL, cut)
