"""A model's shape with the bytes that its weights take in an engine, for the cost model to reckon with."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from milepost.kernels.mxfp4 import GROUP
from milepost.model_spec import ModelSpec
from milepost.models.shards import Checkpoint
from milepost.models.weights import PACKED_SUFFIX
from milepost.shapes.of_spec import shape_of
from milepost.shapes.shape import ModelShape

__all__ = ["stored_shape"]

_BYTES: Final = {"float32": 4.0, "bfloat16": 2.0, "int8": 1.0, "mxfp4": 2.0}
"""Bytes a weight outside the experts; of int8 without its scales, of which there is one an output."""
_MXFP4_BYTES: Final = 0.5 + 1 / GROUP


def stored_shape(spec: ModelSpec, folder: Path, weights: str) -> ModelShape:
    """The shape of a model whose checkpoint lies in `folder`, loaded with ``--weights``.

    Args:
        spec: of the model.
        folder: its checkpoint.
        weights: the engine's option.
    """
    checkpoint = Checkpoint(folder)
    try:
        packed = any(name.endswith(PACKED_SUFFIX) for name in checkpoint.entries)
        head = checkpoint.entries[f"{spec.weight_prefix}lm_head.weight"].dtype
    finally:
        checkpoint.close()
    own = 2.0 if head == "BF16" else 4.0
    each = _BYTES.get(weights, own)
    routed = _MXFP4_BYTES if packed or weights == "mxfp4" else each
    shape = shape_of(spec)
    return msgspec.structs.replace(
        shape,
        recurrent=shape.recurrent and msgspec.structs.replace(shape.recurrent, bytes_per_parameter=each),
        attention=shape.attention and msgspec.structs.replace(shape.attention, bytes_per_parameter=each),
        experts=shape.experts
        and msgspec.structs.replace(
            shape.experts,
            bytes_per_parameter=routed,
            shared_bytes_per_parameter=each,
            latent_bytes_per_parameter=each,
        ),
        dense_bytes_per_parameter=each,
        head_bytes_per_parameter=each,
    )
