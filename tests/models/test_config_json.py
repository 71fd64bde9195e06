"""config.json of both families, and every way in which one must be refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from milepost.config_json import parse_config, read_model_spec
from milepost.errors import CheckpointError
from milepost.model_spec import Activation, KdaSpec, LayerKind, MlaSpec, ModelFamily, MoeSpec
from tests.models.real_configs import k3_config, kimi_linear_config

Change = Callable[[dict[str, Any]], object]


def test_kimi_k3() -> None:
    spec = parse_config(k3_config())
    assert spec.family is ModelFamily.KIMI_K3
    assert spec.weight_prefix == "language_model."
    assert (len(spec.layers), len(spec.kda_layers), len(spec.mla_layers)) == (93, 69, 24)
    assert spec.layers[:4] == (LayerKind.KDA, LayerKind.KDA, LayerKind.KDA, LayerKind.MLA)
    assert spec.mla_layers[-3:] == (87, 91, 92)  # the 3:1 stride breaks at the end
    assert spec.kda == KdaSpec(
        num_heads=96, head_dim=128, conv_size=4, gate_lower_bound=-5.0, full_rank_gate=True
    )
    assert spec.mla == MlaSpec(
        num_heads=96,
        q_lora_rank=1536,
        kv_lora_rank=512,
        nope_head_dim=128,
        rope_head_dim=64,
        v_head_dim=128,
        output_gate=True,
    )
    assert spec.moe == MoeSpec(
        num_experts=896,
        top_k=16,
        intermediate=3072,
        shared_intermediate=6144,
        renormalize=True,
        routed_scaling_factor=1.0,
        latent_dim=3584,
        latent_norm=True,
    )
    assert spec.activation == Activation("situ", 4.0, 25.0)
    assert (spec.attn_res_block, spec.mxfp4_group, spec.first_dense) == (12, 32, 1)
    assert (spec.norm_eps, spec.mla_norm_eps) == (1e-5, 1e-6)
    assert (spec.bos_token_id, spec.pad_token_id, spec.stop_token_ids) == (163584, 163839, (163586,))


def test_kimi_linear() -> None:
    spec = parse_config(kimi_linear_config())
    assert spec.family is ModelFamily.KIMI_LINEAR
    assert spec.weight_prefix == ""
    assert spec.mla_layers == (3, 7, 11, 15, 19, 23, 26)
    assert spec.kda.gate_lower_bound is None
    assert not spec.kda.full_rank_gate
    assert spec.mla.q_lora_rank is None
    assert not spec.mla.output_gate
    assert spec.moe.latent_dim is None
    assert spec.moe.routed_scaling_factor == 2.446
    assert spec.activation == Activation("silu")
    assert spec.attn_res_block is None
    assert spec.mxfp4_group is None
    assert spec.max_position == 1048576


@pytest.mark.parametrize(
    ("generation_eos", "stops"),
    [(None, (163586,)), (163585, (163586, 163585)), ([163586, 163585], (163586, 163585))],
)
def test_stop_tokens_come_from_both_files(
    tmp_path: Path, generation_eos: object, stops: tuple[int, ...]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(k3_config()))
    if generation_eos is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": generation_eos}))
    assert read_model_spec(tmp_path).stop_token_ids == stops


def _set(*path: str, value: object) -> Change:
    def change(config: dict[str, Any]) -> None:
        for name in path[:-1]:
            config = config[name]
        config[path[-1]] = value

    return change


LISTS = ("linear_attn_config", "kda_layers")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set("mla_use_nope", value=False), "mla_use_nope: only true"),
        (_set("moe_layer_freq", value=2), "moe_layer_freq: only 1 is implemented. Given: 2"),
        (_set("num_expert_group", value=8), "num_expert_group: only 1"),
        (_set("topk_group", value=4), "topk_group: only 1"),
        (_set("topk_method", value="greedy"), 'topk_method: only "noaux_tc"'),
        (_set("moe_router_activation_func", value="softmax"), "moe_router_activation_func"),
        (_set("num_nextn_predict_layers", value=1), "num_nextn_predict_layers"),
        (_set("tie_word_embeddings", value=True), "tie_word_embeddings: only false"),
        (_set("num_key_value_heads", value=8), "num_key_value_heads: must equal"),
        (_set("hidden_act", value="gelu"), "hidden_act: must be one of 'silu', 'situ'"),
        (_set("hidden_act", value="situ"), "activation_situ_beta: is missing"),
        (_set("num_experts_per_token", value=257), "at most the 256 experts"),
        (_set("first_k_dense_replace", value=28), "at most 27 layers"),
        (
            _set("hidden_size", value="2304"),
            'hidden_size: must be a whole number of at least 1. Given: "2304"',
        ),
        (_set("hidden_size", value=True), "hidden_size: must be"),
        (_set("rms_norm_eps", value=0), "rms_norm_eps: must be a number above 0"),
        (_set("eos_token_id", value=163840), "must be above every token id. Given: 163840"),
        (_set("eos_token_id", value=None), "replies would never end"),
        (_set("attn_res_blocksize", value=12), "Did you mean 'attn_res_block_size'?"),
        (_set("sliding_window", value=4096), "sliding_window: is unknown and could change the maths"),
        (_set("linear_attn_config", "gate_low_bound", value=-5), "Did you mean 'gate_lower_bound'?"),
        (_set("linear_attn_config", "gate_lower_bound", value=5.0), "must be below 0"),
        (_set("linear_attn_config", value=[]), "linear_attn_config: must be an object"),
        (_set(*LISTS, value=list(range(27))), "layers count from 1 to 27. Given: \\[0\\]"),
        (_set(*LISTS, value=[1, 2, 3]), "must name every layer from 1 to 27. Missing: \\[5, 6, 7, 9, 10\\]"),
        (_set(*LISTS, value=[1, 1, 2, 3]), "named already: \\[1\\]"),
        (_set(*LISTS, value=None), "kda_layers: must be a list"),
        (_set("linear_attn_config", "full_attn_layers", value=[4, 5]), "full_attn_layers: names layers"),
        (_set("layer_types", value=["full_attention"] * 27), "layer_types: contradicts"),
        (_set("model_type", value="qwen3_next"), "model_type: must be one of 'kimi_k3', 'kimi_linear'"),
    ],
)
def test_refused(change: Change, message: str) -> None:
    config = kimi_linear_config()
    change(config)
    with pytest.raises(CheckpointError, match=message):
        parse_config(config)


QUANT = ("text_config", "quantization_config")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_set(*QUANT, "quant_method", value="gptq"), "quantization_config.quant_method: only"),
        (_set(*QUANT, "kv_cache_scheme", value={"num_bits": 8}), "kv_cache_scheme: is unknown"),
        (_set(*QUANT, "config_groups", "group_0", "weights", "group_size", value=16), "must be 32 for MXFP4"),
        (_set(*QUANT, "config_groups", "group_0", "weights", "num_bits", value=8), "num_bits: only 4"),
        (_set("text_config", value=None), "text_config: is missing"),
        (_set("hidden_size", value=7168), "hidden_size: is unknown"),
    ],
)
def test_refused_k3(change: Change, message: str) -> None:
    config = k3_config()
    change(config)
    with pytest.raises(CheckpointError, match=message):
        parse_config(config)


def test_all_problems_are_listed_at_once() -> None:
    config = kimi_linear_config()
    del config["hidden_size"], config["num_experts"]
    config["moe_layer_freq"] = 2
    config["sliding_window"] = 128
    with pytest.raises(CheckpointError) as caught:
        parse_config(config)
    message = str(caught.value)
    assert "4 problems" in message
    for name in ("hidden_size", "num_experts", "moe_layer_freq", "sliding_window"):
        assert f"- {name}" in message


def test_many_problems_are_counted() -> None:
    config = kimi_linear_config() | {f"unknown_{index}": 1 for index in range(30)}
    with pytest.raises(CheckpointError) as caught:
        parse_config(config)
    assert "30 problems" in str(caught.value)
    assert "... and 10 more" in str(caught.value)


def test_quantization_at_either_level() -> None:
    config = k3_config()
    quantization = config["text_config"]["quantization_config"]
    config["quantization_config"] = quantization
    assert parse_config(config).mxfp4_group == 32
    del config["text_config"]["quantization_config"]
    assert parse_config(config).mxfp4_group == 32
    del config["quantization_config"]
    assert parse_config(config).mxfp4_group is None


def test_null_and_alternative_spellings_pass() -> None:
    config = kimi_linear_config()
    config |= {
        "sliding_window": None,
        "mlp_layer_types": ["dense"] + ["sparse"] * 26,
        "num_local_experts": config.pop("num_experts"),
    }
    assert parse_config(config) == parse_config(kimi_linear_config())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "has no config.json"),
        (b"{", "is not valid JSON"),
        (b"\xff\xfe", "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b"[]", "must hold a JSON object"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_model_spec(tmp_path)
    assert "\n" not in str(caught.value)


def test_not_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"")
    with pytest.raises(CheckpointError, match="which is a file"):
        read_model_spec(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match="which does not exist"):
        read_model_spec(tmp_path / "nowhere")
