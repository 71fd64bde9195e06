"""Bytes of quantised checkpoints: by the Hub's counts of elements, and by each format's settings."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from milepost.errors import CheckpointError
from milepost.shapes.configs.by_model_type import read_shape
from milepost.shapes.names import SHAPES
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.part_weights import weights_of

BF16, FP8, BLOCK_FP8, NVFP4 = 2.0, 1.0, 1 + 4 / 128**2, 0.5 + 1 / 16
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}


def config_of(name: str) -> dict[str, Any]:
    text = (SHAPES[name] / "config.json").read_text()
    content = json.loads(text)
    assert isinstance(content, dict)
    return content


def quantised(name: str, settings: dict[str, Any] | None) -> ModelShape:
    return read_shape({**config_of(name), "quantization_config": settings})


def packed_parameters(model: ModelShape, size: float) -> float:
    """How many parameters are stored in `size` bytes when all others take two."""
    parts = weights_of(model).values()
    return sum(part.parameters * (BF16 - part.bytes_per_parameter) for part in parts) / (BF16 - size)


def total(model: ModelShape) -> int:
    return sum(part.parameters for part in weights_of(model).values())


def test_qwen3_235b_in_fp8() -> None:
    """The Hub counts 235,107,904,512 elements: every packed block of 128 x 128 has one scale beside it."""
    layers = range(94)
    kept = ["lm_head", *(f"model.layers.{layer}.mlp.gate" for layer in layers)]
    kept += [f"model.layers.{layer}.input_layernorm" for layer in layers]
    model = quantised("qwen3-235b-a22b", {**BLOCKS, "modules_to_not_convert": kept})
    assert total(model) + packed_parameters(model, BLOCK_FP8) / 128**2 == pytest.approx(
        235_107_904_512, abs=0.5
    )


def test_minimax_m2_5_as_it_is_published() -> None:
    model = read_shape(config_of("minimax-m2.5"))
    assert total(model) + packed_parameters(model, BLOCK_FP8) / 128**2 == pytest.approx(
        228_703_644_928, abs=0.5
    )


def test_nemotron_3_nano_in_nvfp4() -> None:
    """The Hub counts 18,237,772,608 elements: two packed parameters are one, 16 have a scale.

    Its hf_quant_config.json keeps the attention layers and the Mamba2 layers before them.
    """
    kept = ["lm_head"]
    for layer in (5, 12, 19, 26, 33, 42):
        kept += [f"backbone.layers.{layer}.mixer.{name}_proj" for name in "qkvo"]
        kept += [f"backbone.layers.{layer - 1}.mixer.{name}_proj" for name in ("in", "out")]
    settings = {
        "quant_algo": "NVFP4",
        "kv_cache_quant_algo": "FP8",
        "group_size": 16,
        "exclude_modules": kept,
    }
    model = read_shape(config_of("nemotron-3-nano"), quantization={"quantization": settings})
    packed = packed_parameters(model, NVFP4)
    assert total(model) - packed + packed / 2 + packed / 16 == pytest.approx(18_237_772_608, abs=0.5)
    assert model.attention is not None
    assert model.attention.bytes_per_parameter == BF16
    assert model.recurrent is not None
    assert NVFP4 < model.recurrent.bytes_per_parameter < 1.0


def group(**weights: object) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": [
            "lm_head",
            "re:.*self_attn.*",
            "re:.*shared_experts.*",
            "re:.*mlp\\.(gate|up|down)_proj.*",
        ],
    }


@pytest.mark.parametrize(
    ("settings", "experts", "others"),
    [
        (None, BF16, BF16),
        ({}, BF16, BF16),
        (BLOCKS, BLOCK_FP8, BLOCK_FP8),
        ({"quant_method": "fp8"}, FP8, FP8),
        ({**BLOCKS, "modules_to_not_convert": ["self_attn", "shared_experts", "mlp.gate_proj"]}, 1.0, None),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, FP8, FP8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, NVFP4, NVFP4),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 32}, 0.53125, 0.53125),
        ({**group(num_bits=4, group_size=32), "format": "pack-quantized"}, 0.5 + 2 / 32, BF16),
        ({**group(num_bits=4, group_size=32), "format": "mxfp4-pack-quantized"}, 0.5 + 1 / 32, BF16),
        ({**group(num_bits=4, group_size=16), "format": "nvfp4-pack-quantized"}, NVFP4, BF16),
        ({**group(num_bits=8), "format": "float-quantized"}, FP8, BF16),
        ({**group(num_bits=8, group_size=-1), "format": "pack-quantized"}, FP8, BF16),
    ],
)
def test_formats(settings: dict[str, Any] | None, experts: float, others: float | None) -> None:
    """Kimi K2's routed experts, and its attention, shared experts and dense network (norms apart)."""
    model = quantised("kimi-k2", settings)
    assert model.experts is not None
    assert model.attention is not None
    assert model.experts.bytes_per_parameter == pytest.approx(experts, rel=1e-3)
    assert model.head_bytes_per_parameter == BF16
    found = model.experts.shared_bytes_per_parameter, model.attention.bytes_per_parameter
    if others is None:
        assert found == (BF16, BF16)
        gate, rest = BF16, 2 * BLOCK_FP8
        assert model.dense_bytes_per_parameter == pytest.approx((gate + rest) / 3)
    else:
        assert (*found, model.dense_bytes_per_parameter) == pytest.approx((others,) * 3, rel=1e-3)


def test_a_table_of_matrices() -> None:
    """Mixed precision names matrices, or what stands above several of them; the head may be among them."""
    table: dict[str, Any] = {"lm_head": {"quant_algo": "W4A16_NVFP4", "group_size": 16}}
    for layer in range(60):
        name = f"model.language_model.layers.{layer}"
        table[f"{name}.mlp.experts"] = {"quant_algo": "NVFP4", "group_size": 16}
        table[f"{name}.linear_attn.out_proj"] = {"quant_algo": "FP8"}
    settings = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION", "quantized_layers": table}
    model = quantised("qwen3.5-397b-a17b", {**settings, "ignore": ["mtp*"]})
    assert model.experts is not None
    assert model.experts.bytes_per_parameter == pytest.approx(NVFP4)
    assert model.experts.shared_bytes_per_parameter == BF16
    assert model.head_bytes_per_parameter == pytest.approx(NVFP4)
    assert model.recurrent is not None
    share = 8_192 * 4_096 / (model.recurrent.sharded + model.recurrent.replicated)
    assert model.recurrent.bytes_per_parameter == pytest.approx(BF16 - share)


@pytest.mark.parametrize(
    "kept",
    [
        "model.layers.3.self_attn",
        "model.layers.3.self_attn*",
        "*.3.self_attn.*",
        "re:.*layers\\.3\\.self_attn.*",
        "language_model.model.layers.3.self_attn",
    ],
)
def test_spellings_of_what_is_kept(kept: str) -> None:
    model = quantised("deepseek-v3", {**BLOCKS, "modules_to_not_convert": [kept]})
    everywhere = quantised("deepseek-v3", BLOCKS)
    assert model.attention is not None
    assert everywhere.attention is not None
    per_layer = (BF16 - everywhere.attention.bytes_per_parameter) / 61
    assert model.attention.bytes_per_parameter == pytest.approx(
        everywhere.attention.bytes_per_parameter + per_layer
    )
    assert model.experts == everywhere.experts


@pytest.mark.parametrize("kept", ["gate", "layers.3.mlp.gat", "layers.99", "re:self_attn", "mtp*"])
def test_names_that_match_nothing(kept: str) -> None:
    """A part of a name is a whole part: ``gate`` is the router, not ``gate_proj``."""
    model = quantised("deepseek-v3", {**BLOCKS, "modules_to_not_convert": [kept]})
    assert model == quantised("deepseek-v3", BLOCKS)


def test_the_name_of_a_layer_is_a_whole_part() -> None:
    """``layers.6`` is not ``layers.60``."""
    model = quantised("deepseek-v3", {**BLOCKS, "modules_to_not_convert": ["layers.6"]})
    assert model.experts is not None
    assert model.experts.bytes_per_parameter == pytest.approx((57 * BLOCK_FP8 + BF16) / 58)


def test_settings_inside_the_text_config() -> None:
    nested = config_of("qwen3.5-397b-a17b")
    nested["text_config"]["quantization_config"] = BLOCKS
    assert read_shape(nested) == quantised("qwen3.5-397b-a17b", BLOCKS)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"quant_method": "awq"}, r"quant_method: must be one of 'fp8', 'modelopt', .*\"awq\""),
        ({"bits": 4}, r"quant_method: is missing"),
        ({**BLOCKS, "weight_block_size": [128]}, r"weight_block_size: must be two numbers above 0"),
        ({**BLOCKS, "weight_block_size": [0, 128]}, r"weight_block_size: must be two numbers above 0"),
        ({**BLOCKS, "modules_to_not_convert": "lm_head"}, r"must be a list of names"),
        ({**BLOCKS, "modules_to_not_convert": ["re:(a+)+$"]}, r"pattern that is not known"),
        ({**BLOCKS, "modules_to_not_convert": ["re:" + ".*a" * 50]}, r"pattern that is not known"),
        ({**BLOCKS, "modules_to_not_convert": ["re:("]}, r"pattern that is not known"),
        ({**BLOCKS, "modules_to_not_convert": ["*" * 100]}, r"pattern that is not known"),
        ({"quant_method": "modelopt", "quant_algo": "W8A8_SQ"}, r"quant_algo: must be one of 'FP8'"),
        ({"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}, r"quantized_layers: is missing"),
        ({"quant_method": "compressed-tensors", "format": "marlin-24"}, r"format: must be one of"),
        ({"quant_method": "compressed-tensors", "format": "pack-quantized"}, r"config_groups: is missing"),
        (
            {**group(num_bits=4, group_size=32, symmetric=False), "format": "pack-quantized"},
            r"symmetric: only true",
        ),
        ([], r"quantization_config: must be an object"),
    ],
)
def test_what_is_not_understood(settings: object, words: str) -> None:
    with pytest.raises(CheckpointError, match=words):
        read_shape({**config_of("deepseek-v3"), "quantization_config": settings})


def test_two_groups_are_refused() -> None:
    settings = {**group(num_bits=4, group_size=32), "format": "pack-quantized"}
    settings["config_groups"]["group_1"] = copy.deepcopy(settings["config_groups"]["group_0"])
    with pytest.raises(CheckpointError, match=r"config_groups: must be one group\. Given: 2"):
        quantised("kimi-k2", settings)


@pytest.mark.parametrize("name", ["quantization", "compression_config"])
def test_settings_of_other_tools(name: str) -> None:
    with pytest.raises(CheckpointError, match=rf"{name}: is not known of"):
        read_shape({**config_of("deepseek-v3"), name: {"bits": 4, "group_size": 64}})


def test_settings_beside_a_file_that_the_engine_reads() -> None:
    with pytest.raises(
        CheckpointError, match=r"hf_quant_config\.json beside it is not understood for kimi_linear"
    ):
        read_shape(config_of("kimi-linear"), quantization={"quantization": {"quant_algo": "FP8"}})


def test_a_broken_file_of_settings() -> None:
    with pytest.raises(CheckpointError, match=r"hf_quant_config\.json: quantization must be an object"):
        read_shape(config_of("nemotron-3-nano"), quantization={"quantization": 4})
    with pytest.raises(CheckpointError, match=r"hf_quant_config\.json: quant_algo: is missing"):
        read_shape(config_of("nemotron-3-nano"), quantization={"quantization": {"group_size": 16}})
