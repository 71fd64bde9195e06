"""Names of dtypes and of weight formats, as options spell them, to what the models take."""

from __future__ import annotations

import torch

from milepost.config import DTYPE_ITEMSIZE, WEIGHTS
from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.kernels.matrix import MatrixFormat

__all__ = ["torch_dtype", "weight_format"]

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


def weight_format(name: str) -> MatrixFormat | None:
    """The format of weight matrices called `name`; None for "auto", each as it is stored.

    Raises:
        ConfigError: no such format.
    """
    if name not in WEIGHTS:
        raise ConfigError(one_of("weights", name, WEIGHTS))
    return None if name == "auto" else MatrixFormat(name)
