"""Append a step's MLA rows (normed latent | shared k_pe) to the sequences' blocks.

row = rms_norm(latent, weight) | k_pe
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.checks import check_kv, check_ragged, check_shape
from milepost.kernels.paging import PagedKv, Ragged

__all__ = ["MlaWrite", "check"]


class MlaWrite(Protocol):
    """Write each token's row at its position; nothing else of the cache changes."""

    def __call__(
        self,
        latent: Tensor,
        k_pe: Tensor,
        weight: Tensor,
        eps: float,
        kv: PagedKv,
        layer: int,
        ragged: Ragged,
    ) -> None:
        """Write one layer's rows, cast to the cache's dtype.

        Args:
            latent: [tokens, lora], not normed yet.
            k_pe: [tokens, rope], the key part shared by all heads, written as it is.
            weight: [lora], of the latent's RMSNorm.
            eps: of the norm.
            kv: the cache, rows of lora + rope, and the rows' blocks.
            layer: index among the MLA layers.
            ragged: the rows.
        """
        ...


def check(latent: Tensor, k_pe: Tensor, weight: Tensor, kv: PagedKv, layer: int, ragged: Ragged) -> None:
    """Check shapes; see `MlaWrite`.

    Raises:
        InvariantError: the shapes don't fit each other.
    """
    check_shape("mla_write", "latent", latent, None, None)
    check_shape("mla_write", "k_pe", k_pe, latent.shape[0], None)
    check_shape("mla_write", "weight", weight, latent.shape[1])
    if latent.shape[1] + k_pe.shape[1] != kv.row_dim:
        raise InvariantError(
            f"mla_write: latent and k_pe must fill rows of {kv.row_dim}. "
            f"Given: {latent.shape[1]} + {k_pe.shape[1]}."
        )
    check_ragged("mla_write", latent.shape[0], ragged)
    check_kv("mla_write", kv, layer, ragged)
