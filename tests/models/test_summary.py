"""The numbers of the two published models, from their configs alone, and of a checkpoint from its headers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from milepost.config_json import parse_config
from milepost.errors import CheckpointError
from milepost.kernels.matrix import MatrixFormat
from milepost.kernels.ops import load_ops
from milepost.models import load_model
from milepost.models.loader import expected_tensors
from milepost.models.shards import Checkpoint
from milepost.models.summary import PARTS, count_parameters, summarize
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.models.real_configs import k3_config, kimi_linear_config


def test_kimi_k3_numbers() -> None:
    """Technical report: 2.78 T parameters, 104.2 B activated; 497,052 text tensors by the header audit."""
    count = count_parameters(parse_config(k3_config()))
    assert count.num_tensors == 497_052
    assert round(count.total / 1e12, 4) == 2.7795
    assert round(count.activated / 1e9, 1) == 104.2
    assert list(count.by_part) == list(PARTS)
    assert sum(count.by_part.values()) == count.total
    outside = sum(count.by_part[part] for part in ("embedding", "output head")) + 3 * 7168
    assert sum(layer.parameters for layer in count.layers) == count.total - outside
    assert [layer.mixer for layer in count.layers[-3:]] == ["KDA", "MLA", "MLA"]
    assert [layer.feed_forward for layer in count.layers[:2]] == ["dense", "experts"]


def test_kimi_linear_numbers() -> None:
    count = count_parameters(parse_config(kimi_linear_config()))
    assert count.num_tensors == 20_493
    assert round(count.total / 1e9, 2) == 49.12
    assert round(count.activated / 1e9, 1) == 3.1
    assert "latent projections" not in count.by_part


def test_shapes_of_the_published_headers() -> None:
    """A sample of the names, shapes and packings that were read from the real files."""
    k3 = {tensor.name: tensor for tensor in expected_tensors(parse_config(k3_config()))}
    layer = "language_model.model.layers.12."
    shapes = {
        f"{layer}self_attn.q_proj.weight": (12288, 7168),
        f"{layer}self_attn.k_conv1d.weight": (12288, 1, 4),
        f"{layer}self_attn.f_b_proj.weight": (12288, 128),
        f"{layer}self_attn.dt_bias": (12288,),
        f"{layer}self_attention_res_proj.weight": (1, 7168),
        f"{layer}block_sparse_moe.routed_expert_down_proj.weight": (3584, 7168),
        f"{layer}block_sparse_moe.shared_experts.gate_proj.weight": (6144, 7168),
        f"{layer}block_sparse_moe.experts.895.w1.weight_packed": (3072, 1792),
        f"{layer}block_sparse_moe.experts.0.w2.weight_scale": (3584, 96),
        "language_model.model.layers.92.self_attn.q_b_proj.weight": (18432, 1536),
        "language_model.model.layers.92.self_attn.kv_b_proj.weight": (24576, 512),
        "language_model.model.layers.0.mlp.down_proj.weight": (7168, 33792),
        "language_model.model.output_attn_res_proj.weight": (1, 7168),
        "language_model.lm_head.weight": (163840, 7168),
    }
    assert {name: k3[name].shape for name in shapes} == shapes
    assert {name for name in shapes if k3[name].packed} == {name for name in shapes if ".experts." in name}


@pytest.mark.parametrize("family", ["kimi_k3", "kimi_linear"])
def test_summary_of_a_checkpoint(tmp_path: Path, family: str) -> None:
    is_k3 = family == "kimi_k3"
    folder = write_toy_checkpoint(tmp_path / "toy", "kimi_k3" if is_k3 else "kimi_linear", shards=3)
    summary = summarize(folder)
    entries = Checkpoint(folder).entries.values()
    text = [entry for entry in entries if not entry.name.startswith(("vision_tower.", "mm_projector."))]
    assert summary.num_bytes == sum(entry.num_bytes for entry in text)
    assert summary.num_shards == 3
    assert (summary.skipped_tensors > 0) is is_k3
    assert summary.skipped_bytes == sum(entry.num_bytes for entry in entries) - summary.num_bytes
    assert ("U8" in summary.bytes_by_dtype) is is_k3
    assert summary.parameters.num_tensors == len(text)
    sizes = summary.memory_by_weights
    assert ("mxfp4" in sizes) is is_k3, "80 inputs can't be packed"
    for weights in (None, *MatrixFormat):
        if (weights or "auto") in sizes:
            model = load_model(folder, dtype=torch.float32, ops=load_ops("cpu"), weights=weights)
            assert sizes[weights or "auto"] == model.num_bytes
    assert sizes["float32"] > sizes["bfloat16"] > sizes["int8"]


def test_summary_reads_no_data_but_checks_all_names(tmp_path: Path) -> None:
    folder = write_toy_checkpoint(tmp_path / "toy", "kimi_k3", shards=1, first_dense=0, num_layers=4)
    config = (folder / "config.json").read_text()
    (folder / "config.json").write_text(
        config.replace('"first_k_dense_replace": 0', '"first_k_dense_replace": 1')
    )
    with pytest.raises(CheckpointError, match="3 missing"):
        summarize(folder)


def test_summary_of_a_config_without_shards(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(k3_config()))
    summary = summarize(tmp_path)
    assert summary.parameters == count_parameters(parse_config(k3_config()))
    assert (summary.num_shards, summary.num_bytes) == (0, 0)
    (tmp_path / "part.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="but no index"):
        summarize(tmp_path)
