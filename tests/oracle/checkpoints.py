"""Checkpoints that the oracle tests share, and changes made to them."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file

from milepost.models.checkpoint_writer import write_checkpoint
from milepost.testing.reference_model import Numerics, ReferenceModel

# llama.cpp knows one number of heads for both kinds of layer.
ONE_HEAD_COUNT = {"kda_heads": 4, "mla_heads": 4}

# The published layout's widths and values of a norm are such that an epsilon is a last-digit matter. These
# factors make the normalised vectors so small that it isn't: then who uses which epsilon shows.
SMALL_QK = {r"\.[qk]_conv1d\.": 0.01}
SMALL_LATENT = {r"\.(kv_a_proj_with_mqa|q_a_proj)\.": 0.01}

TOKENS: list[int] = torch.randint(576, (100,), generator=torch.Generator().manual_seed(0)).tolist()


def scaled(source: Path, target: Path, factors: Mapping[str, float]) -> Path:
    """A copy of a checkpoint in which the tensors whose names match a pattern are multiplied."""
    tensors: dict[str, torch.Tensor] = {}
    for path in sorted(source.glob("*.safetensors")):
        tensors.update(load_file(path))
    for pattern, factor in factors.items():
        matching = [name for name in tensors if re.search(pattern, name)]
        assert matching, pattern
        for name in matching:
            tensors[name] = tensors[name] * factor
    config = json.loads((source / "config.json").read_text())
    return write_checkpoint(target, config, tensors.items())


def routing(
    folder: Path, token_ids: list[int], numerics: Numerics | None = None
) -> tuple[torch.Tensor, float]:
    """What the router does.

    Returns:
        Experts chosen, sorted, [tokens * layers, top_k]; and the smallest gap between the last expert chosen
        and the first one left out. Where rounding is far below that gap, no difference can come from another
        choice.
    """
    config = json.loads((folder / "config.json").read_text())
    top_k: int = config.get("text_config", config)["num_experts_per_token"]
    chosen: list[torch.Tensor] = []
    gaps: list[float] = []

    def watch(name: str, layer: int, value: torch.Tensor) -> None:
        if name == "router choice scores":
            best = value.sort(descending=True)
            chosen.append(best.indices[:top_k].sort().values)
            gaps.append(float(best.values[top_k - 1] - best.values[top_k]))

    watched = dataclasses.replace(numerics or Numerics(), observe=watch)
    ReferenceModel.load(folder, numerics=watched).logits(token_ids)
    return torch.stack(chosen), min(gaps)
