"""Append a step's MLA rows (normed latent | shared k_pe) to the sequences' blocks."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.kernels.checks import check_kv, check_ragged, check_shape
from milepost.kernels.paging import PagedKv, Ragged

__all__ = ["MlaWrite", "check"]


class MlaWrite(Protocol):
    """Write each token's row at its position; nothing else of the cache changes."""

    def __call__(self, rows: Tensor, kv: PagedKv, layer: int, ragged: Ragged) -> None:
        """Write one layer's rows.

        Args:
            rows: [tokens, row_dim], cast to the cache's dtype.
            kv: the cache and the rows' blocks.
            layer: index among the MLA layers.
            ragged: the rows.
        """
        ...


def check(rows: Tensor, kv: PagedKv, layer: int, ragged: Ragged) -> None:
    """Check shapes; see `MlaWrite`.

    Raises:
        InvariantError: the shapes don't fit each other.
    """
    check_shape("mla_write", "rows", rows, None, kv.row_dim)
    check_ragged("mla_write", rows.shape[0], ragged)
    check_kv("mla_write", kv, layer, ragged)
