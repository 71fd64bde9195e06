"""The models that benchmarks run on: the shipped one, and a random one of some 100 M parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from milepost.cli.shipped_model import shipped_model
from milepost.models.checkpoint_writer import write_checkpoint
from milepost.models.summary import summarize
from milepost.testing.toy_config import toy_k3_config
from milepost.testing.toy_tokenizer import toy_tokenizer_files
from milepost.testing.toy_weights import toy_tensors

__all__ = ["CACHE", "CLASSIC", "RANDOM_100M", "REPOSITORY", "SUBJECTS", "folder_of", "num_parameters"]

REPOSITORY = Path(__file__).resolve().parents[1]
CACHE = REPOSITORY / ".cache" / "benchmarks"

SUBJECTS = ("shipped", "random-100m")

TOKENIZER_TOKENS = 400

# Kimi K3's shape in small: 12 layers with MLA at 4, 8 and 12, d = 512, vocabulary 8,192, experts in MXFP4.
RANDOM_100M: dict[str, Any] = {
    "base_vocab": 7936,
    "hidden_size": 512,
    "num_layers": 12,
    "dense_intermediate": 1536,
    "kda_heads": 8,
    "kda_head_dim": 64,
    "mla_heads": 8,
    "q_lora_rank": 256,
    "kv_lora_rank": 192,
    "nope_head_dim": 64,
    "rope_head_dim": 32,
    "v_head_dim": 64,
    "num_experts": 22,
    "top_k": 4,
    "moe_intermediate": 384,
    "latent_size": 256,
    "num_shared_experts": 1,
    "attn_res_block": 4,
    "vision": False,
}

CLASSIC = "random-classic"
"""A small model whose state is as large beside its KV as Kimi K3's: an aligned block of 6,000 tokens."""

# A layer's state is 11 heads of 128 x 128 in float32 and a window of 3 tokens of 3 * 11 * 128 channels,
# 772 kB; a token's MLA row is 32 numbers, 128 B.
RANDOM_CLASSIC: dict[str, Any] = {
    "base_vocab": 768,
    "hidden_size": 64,
    "num_layers": 4,
    "full_attn_layers": [4],
    "dense_intermediate": 128,
    "kda_heads": 11,
    "kda_head_dim": 128,
    "mla_heads": 4,
    "q_lora_rank": 32,
    "kv_lora_rank": 16,
    "nope_head_dim": 16,
    "rope_head_dim": 16,
    "v_head_dim": 16,
    "num_experts": 4,
    "top_k": 2,
    "moe_intermediate": 64,
    "latent_size": 64,
    "num_shared_experts": 1,
    "attn_res_block": 4,
    "vision": False,
}

_SIZES = {"random-100m": RANDOM_100M, CLASSIC: RANDOM_CLASSIC}


def folder_of(subject: str) -> Path:
    """The checkpoint of a subject; a random one is written at its first use and kept."""
    if subject == "shipped":
        return shipped_model()
    folder = CACHE / subject
    if not folder.exists():
        config = toy_k3_config(**_SIZES[subject])
        # The toy tokenizer has fewer tokens than this embedding; benchmarks send token ids anyway.
        files = toy_tokenizer_files("kimi_k3", TOKENIZER_TOKENS)
        write_checkpoint(folder, config, toy_tensors(config, 0, torch.bfloat16), files=files)
    return folder


def num_parameters(subject: str) -> int:
    """Parameters of a subject."""
    return summarize(folder_of(subject)).parameters.total
