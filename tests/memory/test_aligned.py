"""The aligned layout: the block sizes that it is known for, exact bytes, and odd shapes."""

from __future__ import annotations

import random

import msgspec
import pytest

from milepost.errors import ConfigError
from milepost.memory.aligned import AlignedLayout, aligned_layout, grow_block
from milepost.memory.layout import TiledLayout, paged_layout
from milepost.memory.named_layout import named_layout
from milepost.model_spec import LayerKind, ModelSpec
from tests.model_specs import K3, KIMI_LINEAR, SMALL

Inputs = tuple[ModelSpec, int, int, int]

# Block sizes by their inputs: model, ranks, bytes of a KV element, alignment; then a token's row and a
# layer's state in bytes, the rows that hold it, the block, and the padding of a layer's state in percent.
# What vLLM logs for Kimi K3 on 8 ranks with fp8 KV is 1,536, by steps of 32 and then of 128: the first two.
# On one rank with bf16 KV it is the published 5,653 rows and a part of one. Windows are bf16.
BLOCKS: list[tuple[Inputs, tuple[int, int, int], int, float]] = [
    ((K3, 8, 1, 32), (576, 814_080, 1_414), 1_440, 1.89),
    ((K3, 8, 1, 128), (576, 814_080, 1_414), 1_536, 8.68),
    ((K3, 8, 2, 64), (1_152, 814_080, 707), 768, 8.68),
    ((K3, 1, 2, 64), (1_152, 6_512_640, 5_654), 5_696, 0.75),
    ((K3, 1, 2, 128), (1_152, 6_512_640, 5_654), 5_760, 1.89),
    ((K3, 1, 1, 128), (576, 6_512_640, 11_307), 11_392, 0.75),
    ((KIMI_LINEAR, 1, 2, 64), (1_152, 2_170_880, 1_885), 1_920, 1.89),
    ((KIMI_LINEAR, 1, 1, 64), (576, 2_170_880, 3_769), 3_776, 0.19),
    ((KIMI_LINEAR, 8, 2, 32), (1_152, 271_360, 236), 256, 8.68),
]


@pytest.mark.parametrize(("inputs", "raw", "block", "padding"), BLOCKS)
def test_known_block_sizes(inputs: Inputs, raw: tuple[int, int, int], block: int, padding: float) -> None:
    spec, ranks, kv_itemsize, alignment = inputs
    layout = aligned_layout(spec, kernel_alignment=alignment, kv_itemsize=kv_itemsize, tensor_parallel=ranks)
    steps = layout.steps
    assert (steps.token_bytes, steps.layer_state_bytes, steps.state_rows) == raw
    assert layout.block_size == steps.block_size == steps.grown_block == block
    assert steps.layer_padding_bytes == block * steps.token_bytes - steps.layer_state_bytes
    assert round(100 * steps.layer_padding_share, 2) == padding


def test_one_rank_of_k3_takes_5653_rows_and_a_part_of_one() -> None:
    steps = aligned_layout(K3).steps
    assert steps.layer_state_bytes == 6_291_456 + 221_184
    assert steps.layer_state_bytes // steps.token_bytes == 5_653


# Models that Milepost does not run, whose blocks vLLM has logged: bytes of a token's keys and values in one
# layer, of a layer's recurrent matrices and of one past input of its convolution; past inputs kept (drafts
# add to the usual 3); alignment; the logged block; and the logged padding in percent, None where the log that
# we know leaves it out. The sizes are those of the public configurations; where the log leaves the run's
# dtypes and drafts open, those are chosen here that give its padding, which two digits hardly do by chance.
LOGGED = {
    "Qwen3.5-4B": (4 * 256 * 2 * 2, 32 * 128 * 128 * 4, 8_192 * 2, 3, 16, 528, 0.76),
    "2 KV heads of 256, 32 value heads": (2 * 256 * 2 * 2, 32 * 128 * 128 * 4, 8_192 * 2, 3, 16, 1_056, None),
    "2 KV heads of 256, 32 value heads, 2 drafts": (
        2 * 256 * 2 * 2,
        32 * 128 * 128 * 4,
        8_192 * 2,
        5,
        16,
        1_072,
        None,
    ),
    "Qwen3.8-27B, fp8 KV, 2 drafts": (4 * 256 * 2, 48 * 128 * 128 * 4, 10_240 * 2, 5, 64, 1_600, 0.88),
    "Qwen3.8-27B, bf16 state, 15 drafts": (
        4 * 256 * 2 * 2,
        48 * 128 * 128 * 2,
        10_240 * 2,
        18,
        16,
        480,
        1.27,
    ),
    "Qwen3.8-27B, bf16 state, int8 KV and its scales, 7 drafts": (
        *(4 * (256 * 2 + 8), 48 * 128 * 128 * 2, 10_240 * 2, 10, 16),
        *(864, 1.09),
    ),
    "Nemotron 3 Nano, fp8 KV, fp32 state": (2 * 128 * 2, 64 * 64 * 128 * 4, 6_144 * 2, 3, 64, 4_224, None),
}


@pytest.mark.parametrize("name", LOGGED)
def test_blocks_that_vllm_logs_for_other_models(name: str) -> None:
    token, matrices, past_input, window, alignment, block, padding = LOGGED[name]
    state = matrices + window * past_input
    assert grow_block(token, state, alignment) == block
    if padding is not None:
        assert round(100 * (block * token - state) / state, 2) == padding


@pytest.mark.parametrize(
    ("token_bytes", "state_bytes", "alignment", "block"),
    [
        (10, 100, 1, 10),
        (10, 101, 1, 11),
        (10, 100, 16, 16),
        (10, 160, 16, 16),
        (10, 161, 16, 32),
        (7, 1, 5, 5),
    ],
)
def test_the_block_is_the_shortest_that_holds_a_state(
    token_bytes: int, state_bytes: int, alignment: int, block: int
) -> None:
    assert grow_block(token_bytes, state_bytes, alignment) == block


def test_the_steps_can_be_read() -> None:
    assert str(aligned_layout(K3, kernel_alignment=128, kv_itemsize=1, tensor_parallel=8).steps) == (
        "(1) a token's row takes 576 B in an MLA layer, a state 814,080 B in a KDA layer: 1,414 rows\n"
        "(2) 1,536 tokens hold a layer's state in steps of 128\n"
        "(3) a layer's state is padded by 70,656 B (8.68%)\n"
        "(4) a page takes 21,233,664 B, a state 3 pages with 3 empty slots"
    )
    raised = aligned_layout(K3, kernel_alignment=1, tensor_parallel=8).steps
    assert (raised.grown_block, raised.block_size) == (707, 708)
    assert "707 tokens hold a layer's state in steps of 1; 708 do in whole tiles" in str(raised)


def spans(layout: AlignedLayout) -> list[tuple[int, int]]:
    """Bytes [start, end) of the state's run of pages that each layer's matrices and window take."""
    found = []
    for index in range(layout.num_recurrent_layers):
        matrices = layout.first_recurrent_tile(index) * layout.tile_bytes
        found.append((matrices, matrices + layout.recurrent_tiles_per_layer * layout.tile_bytes))
        window = layout.first_conv_tile(index) * layout.tile_bytes
        found.append((window, window + layout.conv_tiles_per_layer * layout.tile_bytes))
    return found


def check_bytes(layout: AlignedLayout) -> None:
    """What any aligned layout must be, in bytes."""
    steps = layout.steps
    assert layout.pages_per_block == 1
    assert layout.page_bytes == layout.num_attention_layers * layout.slot_bytes
    assert layout.slot_bytes % layout.tile_bytes == 0
    assert layout.head_dim % layout.tile_rows == 0
    assert layout.block_size % layout.kernel_alignment == 0
    # Every layer lies in its slot, in order and without overlap, a slot a layer.
    ends = [0]
    for start, end in spans(layout):
        assert ends[-1] <= start <= end  # one tap: an empty window
        ends.append(end)
    for index in range(layout.num_recurrent_layers):
        slot = index * layout.slot_bytes
        start, end = spans(layout)[2 * index][0], spans(layout)[2 * index + 1][1]
        assert start == slot
        assert end <= slot + layout.slot_bytes
        page, place = index // layout.num_attention_layers, index % layout.num_attention_layers
        assert start == page * layout.page_bytes + place * layout.slot_bytes
    held = layout.pages_per_state * layout.page_bytes
    assert ends[-1] <= held < ends[-1] + layout.page_bytes + layout.slot_bytes
    assert held == layout.state_bytes + layout.state_padding_bytes
    padding = layout.num_recurrent_layers * steps.layer_padding_bytes + steps.empty_slots * layout.slot_bytes
    assert layout.state_padding_bytes == steps.state_padding_bytes == padding
    # No shorter block would do: it holds too little, or its slots are no whole tiles with room for both.
    assert steps.grown_block <= layout.block_size
    assert (steps.grown_block - layout.kernel_alignment) * steps.token_bytes < steps.layer_state_bytes
    for block in range(steps.grown_block, layout.block_size, layout.kernel_alignment):
        assert not holds_whole_tiles(layout, block * steps.token_bytes)


def holds_whole_tiles(layout: AlignedLayout, slot_bytes: int) -> bool:
    """Whether any rows, tried one by one, cut a slot and a head into tiles with room for a layer."""
    row_bytes = layout.head_dim * layout.recurrent_itemsize
    heads = layout.num_heads * layout.head_dim * row_bytes
    return any(
        slot_bytes % (rows * row_bytes) == 0
        and layout.head_dim % rows == 0
        and heads + -(-layout.conv_bytes_per_layer // (rows * row_bytes)) * rows * row_bytes <= slot_bytes
        for rows in range(1, 17)
    )


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("kv_itemsize", [1, 2])
@pytest.mark.parametrize("alignment", [1, 16, 32, 64, 100, 128])
def test_bytes_of_public_models(ranks: int, alignment: int, kv_itemsize: int) -> None:
    for spec in (K3, KIMI_LINEAR):
        layout = aligned_layout(
            spec, kernel_alignment=alignment, kv_itemsize=kv_itemsize, tensor_parallel=ranks
        )
        check_bytes(layout)
        if alignment % 16 == 0:
            assert layout.block_size == layout.steps.grown_block  # whole tiles cost nothing


def test_bytes_of_odd_shapes() -> None:
    rng = random.Random(5)
    seen_raised = seen_fine = 0
    for _ in range(300):
        heads, ranks = rng.randint(1, 6), rng.randint(1, 3)
        num_mla = rng.randint(1, 5)
        kinds = [LayerKind.MLA] * num_mla + [LayerKind.KDA] * rng.randint(1, 12)
        spec = msgspec.structs.replace(
            SMALL,
            layers=tuple(kinds),
            kda=msgspec.structs.replace(
                SMALL.kda,
                num_heads=heads * ranks,
                head_dim=rng.choice([1, 5, 12, 16, 60]),
                conv_size=rng.randint(1, 5),
            ),
            mla=msgspec.structs.replace(
                SMALL.mla, kv_lora_rank=rng.randint(1, 40), rope_head_dim=rng.choice([0, 3, 8])
            ),
        )
        layout = aligned_layout(
            spec,
            kernel_alignment=rng.choice([1, 3, 16, 64]),
            kv_itemsize=rng.choice([1, 2, 4, 8]),
            conv_itemsize=rng.choice([2, 4, 8]),
            recurrent_itemsize=rng.choice([4, 8]),
            tensor_parallel=ranks,
        )
        check_bytes(layout)
        seen_raised += layout.block_size > layout.steps.grown_block
        seen_fine += layout.tile_rows < 16
    assert seen_raised > 20
    assert seen_fine > 20


def test_a_short_sequence_takes_a_whole_block() -> None:
    """What the comparison shows: the bytes of one token, here and on the paged layout."""
    aligned, paged = aligned_layout(K3, tensor_parallel=8), paged_layout(K3, tensor_parallel=8)
    assert aligned.blocks_for(1) == paged.blocks_for(1) == 1
    assert aligned.page_bytes == 12 * paged.page_bytes
    assert aligned.pages_per_state == 3


@pytest.mark.parametrize(("name", "block_size"), [("paged", 64), ("aligned", 768)])
def test_a_layout_by_name(name: str, block_size: int) -> None:
    layout: TiledLayout = named_layout(name, K3, block_size=64, tensor_parallel=8)
    assert layout.block_size == block_size


def test_what_can_not_be_laid_out_is_refused_with_the_limit() -> None:
    with pytest.raises(ConfigError, match=r"kernel_alignment must be at least 1\. Given: 0"):
        aligned_layout(K3, kernel_alignment=0)
    with pytest.raises(ConfigError, match=r"must divide the 96 KDA heads\. Given: 5"):
        aligned_layout(K3, tensor_parallel=5)
    with pytest.raises(ConfigError, match="at least one MLA and one KDA layer"):
        aligned_layout(msgspec.structs.replace(K3, layers=(LayerKind.MLA,)))
    with pytest.raises(ConfigError, match=r"layout must be one of paged, aligned.*Did you mean 'paged'"):
        named_layout("pagd", K3, block_size=64)
