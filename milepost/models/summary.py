"""What a checkpoint holds, from its config and headers alone: no tensor is loaded.

Parameters are counted as the model uses them: two per byte of packed MXFP4 data, none for the
scales. Activated parameters are those that one token multiplies with: everything but the embedding
table, with ``top_k`` of the routed experts (the counting of the Kimi K3 technical report).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch

from milepost.config_json import read_model_spec
from milepost.errors import ConfigError
from milepost.kernels.matrix import MatrixFormat
from milepost.kernels.native import available
from milepost.kernels.ops import load_ops
from milepost.model_spec import ModelSpec
from milepost.models.loader import check_tensors, expected_tensors, weight_bytes
from milepost.models.shards import Checkpoint, has_weights
from milepost.models.weight_sources import TensorSpec
from milepost.models.weights import PACKED_SUFFIX

__all__ = ["PARTS", "CheckpointSummary", "LayerSummary", "ParameterCount", "count_parameters", "summarize"]

SCALE_SUFFIX: Final = ".weight_scale"
FORMATS: Final = {
    "auto": None,
    "float32": MatrixFormat.FLOAT32,
    "bfloat16": MatrixFormat.BFLOAT16,
    "int8": MatrixFormat.INT8,
    "mxfp4": MatrixFormat.MXFP4,
}
PARTS: Final = (
    "embedding",
    "KDA",
    "MLA",
    "dense feed-forward",
    "routed experts",
    "shared experts",
    "latent projections",
    "router",
    "norms and residual reads",
    "output head",
)
"""Parts that parameters are counted by, in the order of a table."""


@dataclass(frozen=True)
class LayerSummary:
    """One layer: `mixer` is "KDA" or "MLA", `feed_forward` is "dense" or "experts"."""

    index: int
    mixer: str
    feed_forward: str
    parameters: int
    activated: int


@dataclass(frozen=True)
class ParameterCount:
    """Parameters of a model, computed from its spec.

    ``by_part`` has the keys of `PARTS` that the model has; ``activated`` is per token.
    """

    total: int
    activated: int
    by_part: dict[str, int]
    layers: tuple[LayerSummary, ...]
    num_tensors: int


@dataclass(frozen=True)
class CheckpointSummary:
    """A checkpoint folder; without shards only what its config says, and no bytes.

    ``bytes_by_dtype`` (safetensors' names) covers the tensors that the model uses, ``skipped_*``
    those that it knowingly leaves, such as K3's vision tower. ``memory_by_weights`` is what the weights
    take once loaded, by the formats that the option ``weights`` knows and that the experts' sizes allow.
    """

    spec: ModelSpec
    parameters: ParameterCount
    num_shards: int
    bytes_by_dtype: dict[str, int]
    skipped_tensors: int
    skipped_bytes: int
    memory_by_weights: dict[str, int]

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors that the model uses, as stored."""
        return sum(self.bytes_by_dtype.values())


def summarize(folder: Path) -> CheckpointSummary:
    """Read a checkpoint's config and headers, or the config alone where there is no shard yet.

    Raises:
        CheckpointError: as `milepost.models.load_model`, without reading any data.
    """
    spec = read_model_spec(folder)
    if not has_weights(folder):
        return CheckpointSummary(spec, count_parameters(spec), 0, {}, 0, 0, _memory(spec, None))
    with closing(Checkpoint(folder)) as checkpoint:
        used = check_tensors(spec, checkpoint)
        by_dtype: Counter[str] = Counter()
        for entry in used.values():
            by_dtype[entry.dtype] += entry.num_bytes
        skipped = [entry for name, entry in checkpoint.entries.items() if name not in used]
        return CheckpointSummary(
            spec=spec,
            parameters=count_parameters(spec),
            num_shards=len({entry.shard for entry in checkpoint.entries.values()}),
            bytes_by_dtype=dict(by_dtype.most_common()),
            skipped_tensors=len(skipped),
            skipped_bytes=sum(entry.num_bytes for entry in skipped),
            memory_by_weights=_memory(spec, checkpoint),
        )


def _memory(spec: ModelSpec, checkpoint: Checkpoint | None) -> dict[str, int]:
    ops = load_ops("cpu" if available() else "reference")
    sizes = {}
    for name, form in FORMATS.items():
        with suppress(ConfigError):  # experts that can't be packed
            sizes[name] = weight_bytes(
                spec, dtype=torch.float32, ops=ops, weights=form, checkpoint=checkpoint
            )
    return sizes


def count_parameters(spec: ModelSpec) -> ParameterCount:
    """Count a model's parameters from the shapes that its spec implies."""
    tensors = expected_tensors(spec)
    by_part: Counter[str] = Counter()
    total_by_layer: Counter[int] = Counter()
    activated_by_layer: Counter[int] = Counter()
    for layer, part, parameters in _classified(spec, tensors):
        by_part[part] += parameters
        total_by_layer[layer] += parameters
        activated_by_layer[layer] += _activated(spec, part, parameters)
    return ParameterCount(
        total=sum(by_part.values()),
        activated=sum(activated_by_layer.values()),
        by_part={part: by_part[part] for part in PARTS if by_part[part]},
        layers=tuple(
            LayerSummary(
                index=index,
                mixer=kind.name,
                feed_forward="dense" if index < spec.first_dense else "experts",
                parameters=total_by_layer[index],
                activated=activated_by_layer[index],
            )
            for index, kind in enumerate(spec.layers)
        ),
        num_tensors=len(tensors),
    )


OUTSIDE_LAYERS: Final = -1
_LAYER = re.compile(r"\.layers\.(\d+)\.(.*)")
_BY_NAME: Final = (
    (re.compile(r"norm\.weight$|_res_"), "norms and residual reads"),
    (re.compile(r"\.experts\."), "routed experts"),
    (re.compile(r"\.shared_experts\."), "shared experts"),
    (re.compile(r"\.routed_expert_"), "latent projections"),
    (re.compile(r"\.gate\."), "router"),
    (re.compile(r"embed_tokens"), "embedding"),
    (re.compile(r"lm_head"), "output head"),
)


def _classified(spec: ModelSpec, tensors: Iterable[TensorSpec]) -> Iterable[tuple[int, str, int]]:
    """Layer, part and parameters of each tensor."""
    for tensor in tensors:
        match = _LAYER.search(tensor.name)
        layer = int(match[1]) if match else OUTSIDE_LAYERS
        yield layer, _part(spec, layer, tensor.name), _parameters(tensor)


def _part(spec: ModelSpec, layer: int, name: str) -> str:
    if ".self_attn." in name:  # its inner norms belong to it
        return spec.layers[layer].name
    return next((part for pattern, part in _BY_NAME if pattern.search(name)), "dense feed-forward")


def _parameters(tensor: TensorSpec) -> int:
    if tensor.name.endswith(SCALE_SUFFIX):
        return 0
    return tensor.num_elements * (2 if tensor.name.endswith(PACKED_SUFFIX) else 1)


def _activated(spec: ModelSpec, part: str, parameters: int) -> int:
    if part == "embedding":
        return 0
    if part == "routed experts":
        return parameters * spec.moe.top_k // spec.moe.num_experts
    return parameters
