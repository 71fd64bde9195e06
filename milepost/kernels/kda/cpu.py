"""KDA for CPUs: single tokens step in place on their tiles, longer rows go chunk by chunk.

Rows are cut into chunks at absolute multiples of `native.KDA_CHUNK` tokens, so that where a row is cut
depends on positions alone and not on how a prompt was split into steps, and where they leave a snapshot;
one on the grid, or at the row's end, cuts nothing that isn't cut anyway.
"""

from __future__ import annotations

from torch import Tensor

from milepost.kernels.kda import L2_EPS, check
from milepost.kernels.native import empty, floats, native, strided_heads
from milepost.kernels.native.views import rows_view, states_view
from milepost.kernels.paging import PagedState, Ragged

__all__ = ["kda"]


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: PagedState,
    first_tile: int,
    ragged: Ragged,
) -> Tensor:
    """See `milepost.kernels.kda.Kda`; everything is float32."""
    check(q, k, v, g, beta, state, first_tile, ragged)
    floats("kda", "state.recurrent", state.recurrent)
    out = empty(*q.shape)
    native.kda(
        rows_view(ragged),
        states_view(state),
        first_tile,
        q.shape[1],
        L2_EPS,
        *strided_heads("kda", "q", q),
        *strided_heads("kda", "k", k),
        *strided_heads("kda", "v", v),
        *strided_heads("kda", "g", g),
        floats("kda", "beta", beta),
        beta.stride(0),
        out.data_ptr(),
    )
    return out
