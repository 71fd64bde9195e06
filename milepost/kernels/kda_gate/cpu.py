"""KDA's gate and beta in one pass."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.kda_gate import check
from milepost.kernels.native import empty, floats, native, strided_heads

__all__ = ["kda_gate"]


def kda_gate(
    z: Tensor, b: Tensor, dt_bias: Tensor, a_log: Tensor, lower_bound: float | None
) -> tuple[Tensor, Tensor]:
    """See `milepost.kernels.kda_gate.KdaGate`; everything is float32."""
    check(z, b, dt_bias, a_log)
    g, beta = empty(*z.shape), empty(*b.shape)
    native.kda_gate(
        *strided_heads("kda_gate", "z", z),
        floats("kda_gate", "b", b),
        b.stride(0),
        floats("kda_gate", "dt_bias", dt_bias),
        floats("kda_gate", "a_log", a_log),
        lower_bound is not None,
        lower_bound or 0.0,
        g.data_ptr(),
        beta.data_ptr(),
        *z.shape,
    )
    return g, beta
