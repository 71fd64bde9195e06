"""Random MLA operands over poisoned pages, for the tests of both MLA ops."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from milepost.kernels.matrix import DenseMatrix, Matrix
from milepost.kernels.mla_attention import MlaDims, cpu, reference
from milepost.kernels.paging import PagedKv, Ragged
from tests.kernels.arenas import kv_arena, ragged

__all__ = ["LAYER", "LAYERS", "Case"]

LAYERS, LAYER = 3, 1


@dataclass(frozen=True)
class Case:
    """Operands of `mla_attention`."""

    q: Tensor
    k_b: Matrix
    v_b: Matrix
    gate: Tensor | None
    kv: PagedKv
    rows: Ragged

    @classmethod
    def random(
        cls,
        lengths: list[int],
        starts: list[int],
        dims: MlaDims,
        block_size: int,
        *,
        cache: torch.dtype = torch.float32,
        weights: torch.dtype = torch.float32,
    ) -> Case:
        """Rows whose written tokens are filled and whose other places are NaN."""
        rows = ragged(lengths, starts)
        contexts = [start + length for start, length in zip(starts, lengths, strict=True)]
        row_dim = dims.lora + dims.rope
        kv = kv_arena(contexts, layers=LAYERS, block_size=block_size, row_dim=row_dim, dtype=cache)
        for row, context in enumerate(contexts):
            positions = torch.arange(context)
            pages = kv.block_table[row, positions // block_size]
            kv.cache[pages, LAYER, positions % block_size] = torch.randn(context, row_dim).to(cache)
        tokens, heads, qk = sum(lengths), dims.heads, dims.nope + dims.rope

        def weight(*shape: int) -> DenseMatrix:
            return DenseMatrix((torch.randn(*shape) * dims.lora**-0.5).to(weights))

        # Views into something wider, as a fused projection's parts are.
        return cls(
            q=(torch.randn(tokens, heads * qk + 3) * 3)[:, :-3].view(tokens, heads, qk),
            k_b=weight(heads, dims.lora, dims.nope),
            v_b=weight(heads, dims.v, dims.lora),
            gate=torch.randn(tokens, heads * dims.v + 5)[:, 5:],
            kv=kv,
            rows=rows,
        )

    def part(self, row: int) -> Case:
        """One row alone."""
        begin, end = self.rows.offsets[row], self.rows.offsets[row + 1]
        return replace(
            self,
            q=self.q[begin:end],
            gate=None if self.gate is None else self.gate[begin:end],
            kv=PagedKv(self.kv.cache, self.kv.block_table[row : row + 1].contiguous()),
            rows=ragged([end - begin], [self.rows.start_list[row]]),
        )

    def attend(self) -> Tensor:
        """By the compiled kernels."""
        return cpu.mla_attention(self.q, self.k_b, self.v_b, self.gate, self.kv, LAYER, self.rows)

    def exact(self) -> Tensor:
        """By the formula, in float64."""
        gate = None if self.gate is None else self.gate.double()
        kv = PagedKv(self.kv.cache.double(), self.kv.block_table)
        return reference.mla_attention(self.q.double(), self.k_b, self.v_b, gate, kv, LAYER, self.rows)
