"""Kimi Delta Attention over a mixed batch: a gated delta rule whose state lives in tiles.

Per token and head, with S the head's matrix (stored [v, k], written here [k, v]):

    S <- diag(exp g) S
    c  = beta * (v - S^T k^)             the correction reads the decayed state
    S <- S + k^ c^T
    o  = S^T q^                          the output reads the updated state

q^ and k^ are l2-normed per head, q^ is also scaled by head_dim^-0.5. Kimi K3 technical report, section 2.1.1.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.errors import InvariantError
from milepost.kernels.checks import check_ragged, check_shape, check_state
from milepost.kernels.paging import PagedState, Ragged

__all__ = ["L2_EPS", "Kda", "check", "head_tiles"]

L2_EPS = 1e-6


class Kda(Protocol):
    """Advance each row's state over its tokens and read it out at every token."""

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        g: Tensor,
        beta: Tensor,
        state: PagedState,
        first_tile: int,
        ragged: Ragged,
    ) -> Tensor:
        """Run one layer's heads over a batch of rows of any lengths.

        Args:
            q: [tokens, heads, dim], after convolution and SiLU; normed and scaled in here.
            k: [tokens, heads, dim], likewise; normed in here.
            v: [tokens, heads, dim].
            g: [tokens, heads, dim], log decay, at most 0 (`milepost.kernels.kda_gate`).
            beta: [tokens, heads], in (0, 1).
            state: head h's [v, k] matrix is dim / tile_rows tiles from
                ``first_tile + h * dim / tile_rows`` on. Read when the row's start is above 0 (zeros
                else), and rewritten with the state after the row's last token. Each of its snapshots
                is written with the state after the token before its end.
            first_tile: tile of the state at which this layer's matrices start.
            ragged: the rows.

        Returns:
            o: [tokens, heads, dim] in q's dtype. All state maths is float32 (float64 for float64 tiles).
        """
        ...


def head_tiles(state: PagedState) -> int:
    """Tiles of one head's matrix."""
    _, tile_rows, dim = state.recurrent.shape
    return dim // tile_rows


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor,
    state: PagedState,
    first_tile: int,
    ragged: Ragged,
) -> None:
    """Check shapes; see `Kda`.

    Raises:
        InvariantError: the shapes don't fit each other or the state, or a snapshot doesn't fit its row.
    """
    tokens, heads, dim = q.shape
    for name, tensor in (("k", k), ("v", v), ("g", g)):
        check_shape("kda", name, tensor, tokens, heads, dim)
    check_shape("kda", "beta", beta, tokens, heads)
    check_ragged("kda", tokens, ragged)
    tile_rows = state.recurrent.shape[1]
    check_shape("kda", "state.recurrent", state.recurrent, None, None, dim)
    if dim % tile_rows:
        raise InvariantError(f"kda: tile_rows must divide head_dim {dim}. Given: {tile_rows}.")
    check_state("kda", state, ragged, first_tile + heads * head_tiles(state))
