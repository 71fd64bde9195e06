"""Names of dtypes, as options and checkpoints spell them, to torch's dtypes."""

from __future__ import annotations

import torch

from milepost.config import DTYPE_ITEMSIZE
from milepost.error_text import one_of
from milepost.errors import ConfigError

__all__ = ["torch_dtype"]

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


def torch_dtype(name: str) -> torch.dtype:
    """The dtype called `name`.

    Raises:
        ConfigError: no such dtype, or not one the engine computes in.
    """
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise ConfigError(one_of("dtype", name, DTYPE_ITEMSIZE))
    return dtype
