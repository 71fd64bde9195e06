"""MLA row write for CPUs: norm, cast and write in one pass."""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.mla_write import check
from milepost.kernels.native import floats, native
from milepost.kernels.native.views import kv_view, rows_view
from milepost.kernels.paging import PagedKv, Ragged

__all__ = ["mla_write"]


def mla_write(
    latent: Tensor, k_pe: Tensor, weight: Tensor, eps: float, kv: PagedKv, layer: int, ragged: Ragged
) -> None:
    """See `milepost.kernels.mla_write.MlaWrite`; latent, k_pe and weight are float32."""
    check(latent, k_pe, weight, kv, layer, ragged)
    native.mla_write(
        floats("mla_write", "latent", latent),
        latent.stride(0),
        floats("mla_write", "k_pe", k_pe),
        k_pe.stride(0),
        floats("mla_write", "weight", weight),
        weight.shape[0],
        eps,
        kv_view(kv),
        layer,
        rows_view(ragged),
    )
