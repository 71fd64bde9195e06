"""Random operands and states for KDA's tests."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from milepost.kernels.paging import Ragged
from tests.kernels.arenas import StateArena


@dataclass(frozen=True)
class Inputs:
    q: Tensor
    k: Tensor
    v: Tensor
    g: Tensor
    beta: Tensor

    def part(self, tokens: Tensor) -> Inputs:
        q, k, v, g, beta = (x[tokens] for x in self.all())
        return Inputs(q, k, v, g, beta)

    def to(self, dtype: torch.dtype) -> Inputs:
        # As in the engine: the gate and beta stay at least float32.
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return Inputs(
            self.q.to(dtype), self.k.to(dtype), self.v.to(dtype), self.g.to(wide), self.beta.to(wide)
        )

    def all(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        return self.q, self.k, self.v, self.g, self.beta


def make_inputs(tokens: int, heads: int, dim: int, gate: str = "bounded") -> Inputs:
    q, k, v, z = torch.randn(4, tokens, heads, dim, dtype=torch.float64)
    g = {
        "bounded": -5 * torch.sigmoid(z),
        "open": -1e-4 * torch.sigmoid(z),  # nearly no decay
        "shut": -5 * torch.sigmoid(z + 9),  # near the bound
        "unbounded": -60 * torch.sigmoid(4 * z),  # Kimi-Linear's softplus has no floor
        "sudden": torch.where(z > 1.3, -60.0, -1e-3),  # a wiped state, then a long memory
        "off": torch.zeros_like(z),
    }[gate]
    return Inputs(q, k, v, g, torch.rand(tokens, heads, dtype=torch.float64))


def fill(arena: StateArena, rows: Ragged) -> None:
    """Give rows that start above 0 a state; the others stay NaN, which a kernel must not read."""
    tiles = arena.state.tile_ids(arena.first_tile, arena.tiles)
    for row, start in enumerate(rows.start_list):
        if start > 0:
            shape = (arena.tiles, *arena.state.recurrent.shape[1:])
            arena.state.recurrent[tiles[row]] = torch.randn(shape, dtype=torch.float64)
