"""Attention Residuals' read and the norm behind it for CPUs: sources are read once from memory."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.attn_res import check
from milepost.kernels.native import contiguous_floats, empty, floats, native

__all__ = ["attn_res"]


def attn_res(
    running: Tensor, banks: Sequence[Tensor], site_weight: Tensor, out_weight: Tensor, eps: float
) -> Tensor:
    """See `milepost.kernels.attn_res.AttnRes`; all is float32, sources are contiguous."""
    check(running, banks, site_weight, out_weight)
    if len(banks) >= native.MOST_SOURCES:
        raise InvariantError(
            f"attn_res: mixes at most {native.MOST_SOURCES} sources. "
            f"Given: {len(banks)} banks and the running sum."
        )
    tokens, dim = running.shape
    out = empty(tokens, dim)
    native.attn_res(
        [contiguous_floats("attn_res", "source", source) for source in (*banks, running)],
        floats("attn_res", "site_weight", site_weight),
        floats("attn_res", "out_weight", out_weight),
        tokens,
        dim,
        eps,
        out.data_ptr(),
    )
    return out
