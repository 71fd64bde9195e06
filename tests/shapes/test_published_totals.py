"""Parameters of each shipped config against the counts of the published checkpoints.

A checkpoint may hold more than the language model: draft layers (MTP) and a tower for images. They are
counted here, from the published modelling code, so that the sums can be compared to the last parameter. Where
nothing else is said a count is the Hub's, of the elements of all tensors of the safetensors files.
"""

from __future__ import annotations

import msgspec
import pytest

from milepost.shapes.configs.by_model_type import read_shape
from milepost.shapes.names import find_shape
from milepost.shapes.shape import AttentionShape, ModelShape
from milepost.sim.cost.part_weights import weights_of

# Text parameters. Qwen3-Next: of Qwen3-Coder-Next, the same model published without draft layer. MiniMax: of
# M2 and M2.7. Nemotron: with the routing biases, which the Hub counts apart (float32). DeepSeek-V3: by its
# modelling code, without the draft layer. Qwen3.5: a published audit of 397B-A17B's checkpoint, and what the
# loaded text models of 4B and 27B report.
TEXT = {
    "kimi-k3": 2_779_484_476_000,
    "kimi-linear": 49_122_681_728,
    "qwen3-next-80b-a3b": 79_674_391_296,
    "qwen3.5-4b": 4_205_751_296,
    "qwen3.5-27b": 26_895_998_464,
    "qwen3.5-397b-a17b": 396_346_350_336,
    "qwen3-235b-a22b": 235_093_634_560,
    "nemotron-3-nano": 31_577_937_344 + 23 * 128,
    "deepseek-v3": 671_026_419_200,
    "minimax-m2.5": 228_689_764_864,
}


def shape(name: str) -> ModelShape:
    return find_shape(name)[1]


def total_parameters(model: ModelShape) -> int:
    return sum(part.parameters for part in weights_of(model).values())


def activated_parameters(model: ModelShape) -> int:
    return sum(part.activated for part in weights_of(model).values())


def checkpoint_bytes(model: ModelShape) -> float:
    return sum(part.parameters * part.bytes_per_parameter for part in weights_of(model).values())


def attention_of(model: ModelShape) -> int:
    attention: AttentionShape | None = model.attention
    assert attention is not None
    return attention.sharded + attention.replicated


def feed_forward_of(model: ModelShape) -> int:
    """Of one layer's experts, or of its dense network."""
    experts = model.experts
    if experts is None:
        return model.dense_parameters
    around = experts.shared_parameters + experts.latent_down + experts.latent_up + experts.router
    return experts.num_experts * experts.expert_parameters + around


def draft_layer(model: ModelShape, norms: int) -> int:
    """Two embeddings to one, attention, feed-forward, and some norms."""
    hidden = model.hidden_size
    return 2 * hidden * hidden + attention_of(model) + feed_forward_of(model) + norms * hidden


def image_tower(width: int, intermediate: int, depth: int, out: int) -> int:
    """Qwen3.5's: patches of 2 x 16 x 16 in three colours, 2,304 positions, four patches merged to a token."""
    attention = width * 3 * width + 3 * width + width * width + width
    network = 2 * width * intermediate + intermediate + width
    merged = 4 * width
    merger = merged * merged + merged + merged * out + out + 2 * width
    patches = width * 3 * 2 * 16 * 16 + width + 2_304 * width
    return depth * (attention + network + 4 * width) + patches + merger


@pytest.mark.parametrize("name", TEXT)
def test_every_parameter_of_the_language_model(name: str) -> None:
    assert total_parameters(shape(name)) == TEXT[name]


@pytest.mark.parametrize(
    ("name", "norms", "tower", "published"),
    [
        ("qwen3-next-80b-a3b", 5, (), 81_324_862_720),
        ("qwen3.5-4b", 5, (1_024, 4_096, 24, 2_560), 4_659_865_088),
        ("qwen3.5-27b", 5, (1_152, 4_304, 27, 5_120), 27_781_427_952),
        ("qwen3.5-397b-a17b", 5, (1_152, 4_304, 27, 4_096), 403_397_928_944),
        # The Hub counts bf16 tensors: 41 layers' routing biases are float32.
        ("nemotron-3-super", 5, (), 123_611_012_096 + 41 * 512),
    ],
)
def test_whole_checkpoints(name: str, norms: int, tower: tuple[int, ...], published: int) -> None:
    model = shape(name)
    images = image_tower(*tower) if tower else 0
    assert total_parameters(model) + draft_layer(model, norms) + images == published


def test_qwen_3_8_with_2_4_trillion() -> None:
    """Qwen/Qwen3.8-2.4T-A95B by the fields of its config.json that sizes depend on."""
    model = read_shape(
        {
            "model_type": "qwen3_5_moe_text",
            "attn_output_gate": True,
            "full_attention_interval": 4,
            "head_dim": 256,
            "hidden_size": 8_192,
            "linear_conv_kernel_dim": 4,
            "linear_key_head_dim": 128,
            "linear_num_key_heads": 16,
            "linear_num_value_heads": 128,
            "linear_value_head_dim": 128,
            "max_position_embeddings": 262_144,
            "moe_intermediate_size": 2_048,
            "num_attention_heads": 64,
            "num_experts": 512,
            "num_experts_per_tok": 10,
            "num_hidden_layers": 92,
            "num_key_value_heads": 4,
            "shared_expert_intermediate_size": 2_048,
            "vocab_size": 248_320,
        }
    )
    assert total_parameters(model) + draft_layer(model, 5) == 2_446_182_725_504


def test_deepseek_v3_by_dtype() -> None:
    """The Hub: 3,918,786,560 in bf16, 680,571,043,840 in fp8, 41,555,600 in float32 (scales, routing biases).

    The draft layer has copies of both tables.
    """
    model = shape("deepseek-v3")
    tables = 2 * model.vocab_size * model.hidden_size
    total = total_parameters(model) + draft_layer(model, 5) + tables
    biases = 59 * 256
    assert total == 3_918_786_560 + 680_571_043_840 + biases
    # Of the parts, what is stored in fp8 is what takes a byte and its share of a scale; the rest two bytes.
    assert model.attention is not None
    assert model.experts is not None
    saving = 2.0 - (1.0 + 4 / 128**2)
    layers = 62  # the draft layer is like the others
    in_fp8 = layers * attention_of(model) * (2.0 - model.attention.bytes_per_parameter)
    in_fp8 += 3 * model.dense_parameters * (2.0 - model.dense_bytes_per_parameter)
    routed = model.experts.num_experts * model.experts.expert_parameters
    in_fp8 += 59 * routed * (2.0 - model.experts.bytes_per_parameter)
    in_fp8 += 59 * model.experts.shared_parameters * (2.0 - model.experts.shared_bytes_per_parameter)
    assert round(in_fp8 / saving) == 680_571_043_840


def test_kimi_k2_to_nine_digits() -> None:
    """The Hub counts 1,026,470,731,056 for Kimi-K2-Base, scales and all: 3,416 more, of what is unknown."""
    blocks = 61 * (12 * 56 + 96 * 12 + 5 * 56 + 128 * 4 + 56 * 64) + 3 * 144 * 56 + 60 * 385 * 3 * 16 * 56
    assert 1_026_470_731_056 - total_parameters(shape("kimi-k2")) - blocks == 3_416


@pytest.mark.parametrize(
    ("name", "tables", "published"),
    [
        ("kimi-k3", 1, "104.2"),  # technical report
        ("kimi-linear", 1, "3"),
        ("deepseek-v3", 1, "37"),
        ("kimi-k2", 1, "32"),
        ("qwen3-235b-a22b", 1, "22"),
        ("qwen3.5-397b-a17b", 2, "17"),
        ("qwen3-next-80b-a3b", 0, "3"),
        ("minimax-m2.5", 1, "10"),
        ("nemotron-3-nano", 1, "3.2"),  # technical report, arXiv 2512.20848
        ("nemotron-3-super", 1, "12"),
    ],
)
def test_activated_parameters(name: str, tables: int, published: str) -> None:
    """In billions, with the digits that are published; publishers differ in which tables they count."""
    model = shape(name)
    activated = activated_parameters(model) + (tables - 1) * model.vocab_size * model.hidden_size
    digits = len(published.partition(".")[2])
    assert f"{activated / 1e9:.{digits}f}" == published


def test_checkpoint_bytes_of_kimi_k3() -> None:
    assert checkpoint_bytes(shape("kimi-k3")) == pytest.approx(1.560e12, rel=1e-3)


def test_a_tied_head_is_counted_once() -> None:
    tied = shape("qwen3.5-4b")
    assert tied.tied_embeddings
    apart = msgspec.structs.replace(tied, tied_embeddings=False)
    table = tied.vocab_size * tied.hidden_size
    assert total_parameters(apart) - total_parameters(tied) == table
    assert checkpoint_bytes(apart) - checkpoint_bytes(tied) == 2 * table
    assert activated_parameters(apart) == activated_parameters(tied)
