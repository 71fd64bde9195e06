"""Small random checkpoints in exactly the published layout of Kimi K3 and of Kimi-Linear.

What the published files hold to surprise a loader, these hold too. Kimi K3: a text model nested in
config.json and prefixed ``language_model.``; layer lists that count from 1, with two MLA layers at the end;
A_log longer than the number of heads; F32 convolutions, A_log, dt_bias, o_norm and router bias among BF16
weights; experts packed in MXFP4 while the router and the latent projections are not, although the
quantisation's ignore list doesn't name them; dead Attention Residuals weights in layer 0; vision tensors.
Kimi-Linear: A_log of shape [1, 1, heads, 1], no query compression, a low-rank output gate, a gate without a
bound, a scaling factor of the routed experts.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.models.checkpoint_writer import write_checkpoint
from milepost.testing.threads import single_thread
from milepost.testing.toy_config import SPECIAL_TOKENS, toy_k3_config, toy_kimi_linear_config
from milepost.testing.toy_tokenizer import toy_tokenizer_files
from milepost.testing.toy_weights import toy_tensors

__all__ = ["toy_k3_config", "toy_kimi_linear_config", "write_toy_checkpoint"]

_BUILDERS: dict[str, Callable[..., dict[str, Any]]] = {
    "kimi_k3": toy_k3_config,
    "kimi_linear": toy_kimi_linear_config,
}


@single_thread()
def write_toy_checkpoint(
    folder: str | os.PathLike[str],
    family: str = "kimi_k3",
    seed: int = 0,
    *,
    dtype: torch.dtype = torch.bfloat16,
    shards: int = 2,
    **sizes: Any,  # noqa: ANN401 - each builder checks and types its own
) -> Path:
    """Write a random checkpoint with its tokenizer.

    The same seed gives the same numbers in any dtype (rounded to it), packed or not, and in any number of
    shards.

    Args:
        folder: where it shall lie; must not exist.
        family: whose layout it has.
        seed: of the weights.
        dtype: of the weights that are published as BF16. Give float32 where a test compares closely.
        shards: number of safetensors files.
        sizes: keyword arguments of `toy_k3_config` or `toy_kimi_linear_config`.

    Returns:
        The folder.

    Raises:
        CheckpointError: as `write_checkpoint`.
        ConfigError: an unknown family, or as `toy_k3_config`.
    """
    build = _BUILDERS.get(family)
    if build is None:
        raise ConfigError(one_of("family", family, _BUILDERS))
    config = build(**sizes)
    dtype_name = str(dtype).removeprefix("torch.")
    text = config.get("text_config", config)
    config["dtype"] = text["dtype"] = dtype_name
    base_vocab = text["vocab_size"] - SPECIAL_TOKENS
    return write_checkpoint(
        folder,
        config,
        toy_tensors(config, seed, dtype),
        shards=shards,
        files=toy_tokenizer_files(family, base_vocab),
    )
