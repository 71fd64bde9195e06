"""Files that are broken, contradict themselves or are of other models: one clear message, nothing else."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from milepost.errors import CheckpointError, ConfigError
from milepost.shapes.configs.by_model_type import FAMILIES, read_shape
from milepost.shapes.names import SHAPES, find_shape
from milepost.shapes.shape import ModelShape

CONFIGS: dict[str, dict[str, Any]] = {
    name: json.loads((folder / "config.json").read_text()) for name, folder in SHAPES.items()
}


def text_of(config: dict[str, Any]) -> dict[str, Any]:
    inner = config.get("text_config", config)
    assert isinstance(inner, dict)
    return inner


def changed(name: str, **fields: object) -> dict[str, Any]:
    """A shipped config with other values; `...` takes a field away."""
    config = copy.deepcopy(CONFIGS[name])
    for field, value in fields.items():
        text_of(config).pop(field, None)
        if value is not ...:
            text_of(config)[field] = value
    return config


def refused(config: dict[str, Any]) -> str:
    with pytest.raises(CheckpointError) as caught:
        read_shape(config)
    return str(caught.value)


# Fields that sizes depend on, by model.
NEEDED = {
    "qwen3-next-80b-a3b": """
        hidden_size num_hidden_layers vocab_size max_position_embeddings head_dim num_attention_heads
        num_key_value_heads linear_num_key_heads linear_num_value_heads linear_key_head_dim
        linear_value_head_dim linear_conv_kernel_dim num_experts num_experts_per_tok moe_intermediate_size
        shared_expert_intermediate_size full_attention_interval
        """,
    "qwen3.5-27b": """
        hidden_size intermediate_size head_dim linear_num_value_heads vocab_size num_hidden_layers
        """,
    "qwen3-235b-a22b": "hidden_size head_dim num_experts moe_intermediate_size num_key_value_heads",
    "nemotron-3-nano": """
        hidden_size vocab_size mamba_num_heads mamba_head_dim n_groups ssm_state_size conv_kernel
        num_attention_heads num_key_value_heads head_dim n_routed_experts num_experts_per_tok
        moe_intermediate_size moe_shared_expert_intermediate_size
        """,
    "deepseek-v3": """
        hidden_size num_hidden_layers kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
        first_k_dense_replace intermediate_size n_routed_experts moe_intermediate_size num_attention_heads
        """,
    "minimax-m2.5": "hidden_size num_local_experts intermediate_size head_dim num_experts_per_tok",
}
FIELDS = [(name, field) for name, fields in NEEDED.items() for field in fields.split()]


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_field_that_sizes_depend_on_must_be_there(name: str, field: str) -> None:
    message = refused(changed(name, **{field: ...}))
    assert f"{field}: is missing" in message
    assert "(1 problem)" in message


@pytest.mark.parametrize("value", ["many", -1, 2**31, 10**30, 1.5, True, [4], {"a": 1}])
@pytest.mark.parametrize(("name", "field"), FIELDS[:17:4] + FIELDS[17::5])
def test_and_be_a_number_in_range(name: str, field: str, value: object) -> None:
    message = refused(changed(name, **{field: value}))
    assert f"{field}: must be a whole number" in message


def test_all_problems_at_once() -> None:
    message = refused(changed("deepseek-v3", hidden_size="wide", kv_lora_rank=..., num_experts_per_tok=999))
    assert "can't be used (3 problems)" in message
    for words in (
        'hidden_size: must be a whole number from 1 to 2147483647. Given: "wide"',
        "kv_lora_rank: is",
    ):
        assert words in message
    assert "num_experts_per_tok: must be at most the 256 experts. Given: 999" in message


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("qwen3.5-27b", {"layer_types": ["full_attention"] * 63}, "must name the 64 layers"),
        (
            "qwen3.5-27b",
            {"layer_types": ["sliding_attention"] * 64},
            'holds "sliding_attention"; known kinds are',
        ),
        ("qwen3.5-27b", {"layer_types": []}, "must be a list of 1 to"),
        (
            "qwen3.5-27b",
            {"layer_types": [3] * 64},
            "holds 3; known kinds are linear_attention, full_attention",
        ),
        ("qwen3.5-27b", {"layer_types": "MMMM"}, "must be a list of 1 to"),
        (
            "qwen3.5-27b",
            {"num_hidden_layers": 10**9},
            "num_hidden_layers: must be a whole number from 1 to 1000",
        ),
        ("qwen3.5-27b", {"linear_num_value_heads": 40}, "must be a multiple of linear_num_key_heads (16)"),
        (
            "qwen3.5-27b",
            {"num_key_value_heads": 5},
            "must be a multiple of num_key_value_heads (5). Given: 24",
        ),
        ("qwen3.5-27b", {"tie_word_embeddings": "no"}, "tie_word_embeddings: must be true or false"),
        ("qwen3-next-80b-a3b", {"mlp_only_layers": [48]}, "must be a list of layer numbers from 0 to 47"),
        ("qwen3-next-80b-a3b", {"mlp_only_layers": "all"}, "must be a list of layer numbers"),
        ("qwen3-next-80b-a3b", {"use_sliding_window": True}, "sliding_window: is not known of"),
        (
            "qwen3-235b-a22b",
            {"use_sliding_window": ..., "sliding_window": 4096},
            "sliding_window: is not known of",
        ),
        ("nemotron-3-nano", {"sliding_window": 128}, "sliding_window: is not known of"),
        (
            "nemotron-3-nano",
            {"hybrid_override_pattern": "M*X"},
            'holds "X"; known letters are M (mamba), * (att',
        ),
        (
            "nemotron-3-nano",
            {"hybrid_override_pattern": "ME*"},
            "num_hidden_layers: must be the 3 that are named",
        ),
        ("nemotron-3-nano", {"hybrid_override_pattern": ""}, "must be 1 to 1000 letters"),
        ("nemotron-3-nano", {"hybrid_override_pattern": "M" * 1_001}, "must be 1 to 1000 letters"),
        (
            "nemotron-3-nano",
            {"hybrid_override_pattern": ...},
            "hybrid_override_pattern or layers_block_type: is mi",
        ),
        ("nemotron-3-nano", {"layers_block_type": ["mamba"] * 52}, "contradicts hybrid_override_pattern"),
        (
            "nemotron-3-nano",
            {"layers_block_type": ["mamba2"] * 52},
            'holds "mamba2"; known kinds are mamba, atte',
        ),
        ("nemotron-3-nano", {"n_groups": 7}, "mamba_num_heads: must be a multiple of n_groups (7)"),
        ("nemotron-3-nano", {"n_shared_experts": 2}, "n_shared_experts: must be a whole number from 0 to 1"),
        ("nemotron-3-nano", {"mlp_bias": True}, "mlp_bias: only false is known"),
        ("deepseek-v3", {"first_k_dense_replace": 62}, "must be at most 61 layers. Given: 62"),
        ("deepseek-v3", {"index_topk": 2048}, "sparse attention"),
        ("deepseek-v3", {"attention_bias": True}, "attention_bias: only false is known"),
        ("minimax-m2.5", {"attn_type_list": [0] * 62}, "must be a 1 (full attention) for each layer"),
        ("minimax-m2.5", {"shared_intermediate_size": 512}, "shared_intermediate_size: only 0 is known"),
        ("minimax-m2.5", {"qk_norm_type": "per_head"}, "qk_norm_type: must be one of 'per_layer'"),
    ],
)
def test_contradictions_and_what_is_not_understood(name: str, fields: dict[str, Any], words: str) -> None:
    assert words in refused(changed(name, **fields))


@pytest.mark.parametrize("name", ["llama", "qwen3_nxt", "mimo_v2_flash", 7, None, "", ["qwen3_next"]])
def test_other_families(name: object) -> None:
    message = refused({**CONFIGS["qwen3-next-80b-a3b"], "model_type": name})
    assert "\n" not in message
    assert message.startswith("config.json: model_type must be one of kimi_k3, kimi_linear, qwen3_next, ")
    assert ("Did you mean 'qwen3_next'?" in message) == (name == "qwen3_nxt")


def test_a_text_config_that_is_no_object() -> None:
    assert "text_config: must be an object" in refused({**CONFIGS["qwen3.5-27b"], "text_config": 3})


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not valid JSON"),
        (b"[]", "must hold a JSON object. Given: list."),
        (b'{"model_type": "\xff"}', "is not valid JSON"),
        (b'{"model_type": "qwen3_next", "head_dim": "\\ud800"}', "is not valid JSON"),
        (b"[" * 100_000, "is not valid JSON"),
        (b'{"model_type": "deepseek_v3", "hidden_size": Infinity}', "hidden_size: is missing"),
        (b'{"model_type": "deepseek_v3", "hidden_size": 1e999}', "hidden_size: "),
        (b"\x00\x01", "is not valid JSON"),
    ],
)
def test_broken_files(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    for given_path in (path, tmp_path):
        with pytest.raises(CheckpointError) as caught:
            find_shape(str(given_path))
        assert words in str(caught.value)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"can't be read: No such file"):
        find_shape(str(tmp_path))
    with pytest.raises(ConfigError, match=r"must be one of kimi-k3, .*Did you mean 'qwen3\.5-27b'"):
        find_shape("qwen3.5-27")


def test_python_infinity_where_it_does_not_matter() -> None:
    """Nemotron 3 Super's file is no JSON: it holds Infinity."""
    assert "Infinity" in (SHAPES["nemotron-3-super"] / "config.json").read_text()
    assert find_shape("nemotron-3-super")[1].moe_layers == 40


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(name=st.sampled_from(sorted(set(SHAPES) - {"milepost-toy-k3"})), data=st.data())
def test_anything_in_a_field_is_a_shape_or_one_message(name: str, data: st.DataObject) -> None:
    config = copy.deepcopy(CONFIGS[name])
    text = text_of(config)
    fields = data.draw(st.lists(st.sampled_from(sorted(text)), min_size=1, max_size=3))
    for field in fields:
        text[field] = data.draw(JSON)
    try:
        shape = read_shape(config)
    except CheckpointError:
        return
    assert isinstance(shape, ModelShape)


def test_every_family_is_shipped() -> None:
    families = {find_shape(name)[1].family for name in SHAPES}
    assert families >= set(FAMILIES)


@pytest.mark.parametrize(
    "field", ["rope_theta", "hidden_act", "eos_token_id", "transformers_version", "news"]
)
def test_fields_that_sizes_do_not_depend_on(field: str) -> None:
    other = changed("deepseek-v3", **{field: {"any": "thing"}})
    assert read_shape(other) == read_shape(CONFIGS["deepseek-v3"])
