"""Toy checkpoints hold what the published ones hold, surprises included."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import torch
from safetensors.torch import load_file

from milepost.errors import ConfigError
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from milepost.testing.toy_config import toy_k3_config, toy_kimi_linear_config


def _tensors(folder: Path) -> dict[str, torch.Tensor]:
    out: dict[str, torch.Tensor] = {}
    for path in folder.glob("*.safetensors"):
        out.update(load_file(path))
    return out


def _classes(names: list[str]) -> set[str]:
    return {re.sub(r"\.(\d+)\.", ".N.", re.sub(r"\.(\d+)\.", ".N.", name)) for name in names}


@pytest.fixture(scope="module")
def k3(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    folder = write_toy_checkpoint(tmp_path_factory.mktemp("k3") / "m", "kimi_k3")
    return json.loads((folder / "config.json").read_text()), _tensors(folder)


@pytest.fixture(scope="module")
def linear(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    folder = write_toy_checkpoint(tmp_path_factory.mktemp("kl") / "m", "kimi_linear")
    return json.loads((folder / "config.json").read_text()), _tensors(folder)


def test_k3_config(k3: tuple[dict[str, Any], dict[str, torch.Tensor]]) -> None:
    config, _ = k3
    assert config["architectures"] == ["KimiK3ForConditionalGeneration"]
    text = config["text_config"]
    linear = text["linear_attn_config"]
    assert linear["full_attn_layers"][-2:] == [8, 9]
    assert sorted(linear["full_attn_layers"] + linear["kda_layers"]) == list(
        range(1, text["num_hidden_layers"] + 1)
    )
    assert text["quantization_config"]["format"] == "mxfp4-pack-quantized"
    assert not any("gate" in entry and "mlp" not in entry for entry in text["quantization_config"]["ignore"])
    assert "rope_theta" not in text
    assert "rope_scaling" not in text
    assert text["vocab_size"] == config["bos_token_id"] + 256 == 576


def test_published_layer_lists_follow_from_the_published_depths() -> None:
    k3 = toy_k3_config(num_layers=93)["text_config"]["linear_attn_config"]
    assert k3["full_attn_layers"] == [*range(4, 93, 4), 93]
    assert len(k3["kda_layers"]) == 69
    linear = toy_kimi_linear_config(num_layers=27)["linear_attn_config"]
    assert linear["full_attn_layers"] == [4, 8, 12, 16, 20, 24, 27]


def test_k3_tensor_names(k3: tuple[dict[str, Any], dict[str, torch.Tensor]]) -> None:
    layer, attn, moe = "layers.N.", "layers.N.self_attn.", "layers.N.block_sparse_moe."
    text = {
        "embed_tokens", "norm", "output_attn_res_norm", "output_attn_res_proj",
        *(layer + name for name in ("input_layernorm", "post_attention_layernorm", "self_attention_res_norm",
                                    "self_attention_res_proj", "mlp_res_norm", "mlp_res_proj")),
        *(attn + name for name in ("q_proj", "k_proj", "v_proj", "g_proj", "q_conv1d", "k_conv1d", "v_conv1d",
                                   "f_a_proj", "f_b_proj", "b_proj", "o_norm", "o_proj", "q_a_proj",
                                   "q_a_layernorm", "q_b_proj", "kv_a_proj_with_mqa", "kv_a_layernorm",
                                   "kv_b_proj")),
        *(f"{layer}mlp.{name}_proj" for name in ("gate", "up", "down")),
        *(f"{moe}{name}" for name in ("gate", "routed_expert_down_proj", "routed_expert_norm",
                                      "routed_expert_up_proj")),
        *(f"{moe}shared_experts.{name}_proj" for name in ("gate", "up", "down")),
    }  # fmt: skip
    expected = {f"language_model.model.{name}.weight" for name in text} | {"language_model.lm_head.weight"}
    expected |= {f"language_model.model.{attn}{name}" for name in ("A_log", "dt_bias")}
    expected |= {f"language_model.model.{moe}gate.e_score_correction_bias"}
    expected |= {
        f"language_model.model.{moe}experts.N.w{part}.weight_{kind}"
        for part in "123"
        for kind in ("packed", "scale")
    }
    names = _classes(list(k3[1]))
    assert {name for name in names if name.startswith("language_model.")} == expected
    assert len(expected) == 48
    assert {name.split(".")[0] for name in names} == {"language_model", "vision_tower", "mm_projector"}


def test_k3_dtypes_and_shapes(k3: tuple[dict[str, Any], dict[str, torch.Tensor]]) -> None:
    tensors = {name.removeprefix("language_model.model."): tensor for name, tensor in k3[1].items()}
    f32 = {name for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    assert {name.split(".", 2)[-1] for name in f32} == {
        "self_attn.q_conv1d.weight", "self_attn.k_conv1d.weight", "self_attn.v_conv1d.weight",
        "self_attn.A_log", "self_attn.dt_bias", "self_attn.o_norm.weight",
        "block_sparse_moe.gate.e_score_correction_bias",
    }  # fmt: skip
    assert {name.rsplit("_", 1)[-1] for name, t in tensors.items() if t.dtype == torch.uint8} == {
        "packed",
        "scale",
    }
    assert tensors["layers.1.self_attn.A_log"].shape == (8,)  # for 5 heads
    assert tensors["layers.1.self_attn.q_conv1d.weight"].shape == (160, 1, 4)
    assert tensors["layers.1.mlp_res_proj.weight"].shape == (1, 80)
    assert tensors["layers.1.block_sparse_moe.experts.0.w2.weight_packed"].shape == (64, 48)
    assert tensors["layers.1.block_sparse_moe.experts.0.w2.weight_scale"].shape == (64, 3)
    assert tensors["layers.1.block_sparse_moe.experts.3.w1.weight_scale"].float().std() > 0.5
    assert tensors["layers.3.self_attn.g_proj.weight"].shape == (120, 80)
    assert tensors["layers.2.self_attn.g_proj.weight"].shape == (160, 80)


def test_kimi_linear_layout(linear: tuple[dict[str, Any], dict[str, torch.Tensor]]) -> None:
    config, tensors = linear
    assert config["architectures"] == ["KimiLinearForCausalLM"]
    assert config["rope_scaling"] is None
    assert config["q_lora_rank"] is None
    assert config["routed_scaling_factor"] == 2.446
    assert "quantization_config" not in config
    assert "gate_lower_bound" not in config["linear_attn_config"]
    assert tensors["model.layers.0.self_attn.A_log"].shape == (1, 1, 5, 1)
    assert tensors["model.layers.0.self_attn.g_a_proj.weight"].shape == (32, 80)
    assert tensors["model.layers.0.self_attn.g_b_proj.weight"].shape == (160, 32)
    assert "model.layers.3.self_attn.q_proj.weight" in tensors
    assert "model.layers.6.self_attn.kv_b_proj.weight" in tensors
    assert tensors["model.layers.1.block_sparse_moe.experts.0.w1.weight"].dtype == torch.bfloat16
    assert not any("res_" in name or "g_proj" in name or "vision" in name for name in tensors)


def test_sizes_are_parameters(tmp_path: Path) -> None:
    folder = write_toy_checkpoint(
        tmp_path / "m",
        "kimi_k3",
        hidden_size=48,
        kda_heads=2,
        kda_head_dim=64,
        mla_heads=7,
        num_layers=5,
        vision=False,
    )
    tensors = _tensors(folder)
    prefix = "language_model.model.layers."
    assert tensors[f"{prefix}0.self_attn.q_proj.weight"].shape == (128, 48)
    assert tensors[f"{prefix}4.self_attn.kv_b_proj.weight"].shape == (7 * 64, 48)
    assert all(name.startswith("language_model.") for name in tensors)
    with pytest.raises(ConfigError, match="multiples of 32"):
        write_toy_checkpoint(tmp_path / "n", "kimi_k3", latent_size=40)


def test_seed_and_dtype(tmp_path: Path) -> None:
    def write(name: str, seed: int, shards: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        return _tensors(write_toy_checkpoint(tmp_path / name, "kimi_k3", seed, shards=shards, dtype=dtype))

    first, again = write("a", 3, 2, torch.bfloat16), write("b", 3, 5, torch.bfloat16)
    exact, other = write("c", 3, 2, torch.float32), write("d", 4, 2, torch.bfloat16)
    assert first.keys() == again.keys() == exact.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, again[name])
        assert torch.equal(tensor, exact[name].to(tensor.dtype))
        assert not torch.equal(tensor, other[name]), name


@pytest.mark.parametrize("family", ["kimi_k3", "kimi_linear"])
def test_the_tokenizer_reads_back_and_has_the_published_specials(tmp_path: Path, family: str) -> None:
    folder = write_toy_checkpoint(tmp_path / "m", family)
    lines = (folder / "tiktoken.model").read_text().splitlines()
    ranks = {base64.b64decode(piece): int(rank) for piece, rank in (line.split() for line in lines)}
    assert sorted(ranks.values()) == list(range(320))
    assert all(ranks[bytes([byte])] == byte for byte in range(256))
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    specials = {entry["content"]: int(token) for token, entry in settings["added_tokens_decoder"].items()}
    assert specials["[BOS]"] == 320
    assert specials["[PAD]"] == 575
    stop = {"kimi_k3": "<|end_of_msg|>", "kimi_linear": "<|im_end|>"}[family]
    assert specials[stop] == json.loads((folder / "generation_config.json").read_text())["eos_token_id"]
    encoding = tiktoken.Encoding("toy", pat_str=r"\s?\S+|\s+", mergeable_ranks=ranks, special_tokens=specials)
    text = "the road behind the post — 里程碑\n\x00"
    tokens = encoding.encode(text, disallowed_special=())
    assert encoding.decode(tokens) == text
    assert len(tokens) < len(text.encode())
    assert max(tokens) >= 256
