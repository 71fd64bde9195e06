"""A checkpoint folder to a `Model`: check every header first, then copy each weight once."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Final

import torch

from milepost.config_json import read_model_spec
from milepost.errors import CheckpointError
from milepost.kernels.matrix import MatrixFormat
from milepost.kernels.ops import Ops, load_ops
from milepost.model_spec import ModelSpec
from milepost.models.decoder import Model
from milepost.models.plain_writer import PlainWriter
from milepost.models.shards import Checkpoint, TensorEntry
from milepost.models.weight_sources import CheckpointData, HeaderCheck, Sizes, SpecListing, TensorSpec
from milepost.models.weights import PACKED_SUFFIX, Progress, WeightReader, WeightSource

__all__ = ["SKIPPED", "check_tensors", "expected_tensors", "load_model", "weight_bytes"]

SKIPPED: Final = ("vision_tower.", "mm_projector.")
"""Name prefixes of K3's image input, which Milepost knows and does not run."""


def load_model(
    folder: Path,
    *,
    dtype: torch.dtype,
    ops: Ops,
    weights: MatrixFormat | None = None,
    progress: Progress | None = None,
) -> Model:
    """Load a checkpoint in Hugging Face layout.

    Peak memory is the model's own weights plus a staging buffer: data is read a few MB at a time, and
    converted, rounded or packed straight into the final, possibly fused or stacked, matrices.

    Args:
        folder: config.json with model.safetensors or indexed shards.
        dtype: of activations, any float dtype; kernels that compute in float32 alone take that instead.
        ops: the kernels.
        weights: the format of weight matrices; None keeps each as it is stored. See `WeightReader`.
        progress: called with (bytes read, bytes to read) every few MB.

    Raises:
        CheckpointError: config.json or a shard can't be used, or the tensors are not those that
            config.json describes (all of them in one message), before any data is read.
        ConfigError: the model's experts can't be stored in the format.
    """
    spec = read_model_spec(folder)
    with closing(Checkpoint(folder)) as checkpoint:
        total = sum(entry.num_bytes for entry in check_tensors(spec, checkpoint).values())
        reader = _reading(dtype, weights, ops)(CheckpointData(checkpoint, total, progress))
        return Model(spec, reader, ops)


def check_tensors(spec: ModelSpec, checkpoint: Checkpoint) -> dict[str, TensorEntry]:
    """Compare a checkpoint's headers with its spec; returns the tensors that the model uses.

    Raises:
        CheckpointError: tensors are missing, misshapen or unexpected, or packed but not declared so.
    """
    check = HeaderCheck(checkpoint)
    Model(spec, WeightReader(check, torch.float32), load_ops("reference"))
    check.finish(ignored=SKIPPED if spec.weight_prefix else ())
    packed = next((name for name in check.used if name.endswith(PACKED_SUFFIX)), None)
    if packed is not None and spec.mxfp4_group is None:
        raise CheckpointError(
            f"{checkpoint.folder} holds packed weights such as {packed}, but its config.json has no "
            "quantization_config that says how they are packed. Take config.json from the same source."
        )
    return check.used


def expected_tensors(spec: ModelSpec) -> list[TensorSpec]:
    """Names and shapes of all text tensors that a checkpoint of this spec holds, layer by layer."""
    source = SpecListing(packed=spec.mxfp4_group is not None)
    Model(spec, WeightReader(source, torch.float32), load_ops("reference"))
    return source.tensors


def weight_bytes(
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    ops: Ops,
    weights: MatrixFormat | None = None,
    checkpoint: Checkpoint | None = None,
) -> int:
    """Bytes that a model of this spec will take in memory, before anything is loaded or checked.

    Args:
        spec: the model.
        dtype: as of `load_model`.
        ops: the kernels, whose order of a matrix may pad it.
        weights: as of `load_model`.
        checkpoint: whose headers say how tensors are stored; None takes them for published ones, whose
            matrices are bfloat16 and whose experts are packed if the spec says so.

    Raises:
        ConfigError: the model's experts can't be stored in the format.
    """
    source = Sizes(checkpoint, packed=spec.mxfp4_group is not None)
    return Model(spec, _reading(dtype, weights, ops)(source), ops).num_bytes


def _reading(
    dtype: torch.dtype, weights: MatrixFormat | None, ops: Ops
) -> Callable[[WeightSource], WeightReader]:
    """What makes a model's weights from a source."""
    return partial(
        WeightReader,
        dtype=ops.activation_dtype(dtype),
        weights=weights,
        writer=PlainWriter if ops.writer is None else ops.writer,
    )
