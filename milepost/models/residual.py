"""Residual streams: a plain running sum, or Attention Residuals' banked block sums.

Attention Residuals (Kimi K3 technical report, section 2.2) let each sub-layer read a learned mix of
the running sum and of the sums that earlier blocks of layers left behind. The *raw* running sum is
banked, not the mixed value, and starts again from nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from milepost.kernels.ops import Ops
from milepost.models.weights import WeightReader

__all__ = ["ResidualRead", "ResidualStream"]


class ResidualStream:
    """What one forward pass carries from layer to layer.

    Attributes:
        running: the sum since the last bank, [tokens, hidden]; None right after banking.
        banks: banked sums, [tokens, hidden] each; empty without Attention Residuals.
    """

    def __init__(self, running: Tensor | None, banks: Sequence[Tensor] = ()) -> None:
        self.running = running
        self.banks = list(banks)

    def add(self, delta: Tensor) -> None:
        """Add a sub-layer's output; the stream takes it over."""
        self.running = delta if self.running is None else self.running.add_(delta)

    def bank(self) -> None:
        """Move the running sum to the banks and start again from nothing."""
        if self.running is not None:
            self.banks.append(self.running)
        self.running = None

    def take(self, index: Tensor) -> ResidualStream:
        """The stream of some tokens only."""
        running = None if self.running is None else self.running[index]
        return ResidualStream(running, [bank[index] for bank in self.banks])


class ResidualRead:
    """One place that reads the stream.

    Args:
        name: what the site's two tensors start with, such as ``mlp_res``; None for a plain sum.
        hidden: the stream's width.
        eps: of the norm inside the scores.
        reader: scoped to whatever holds the site.
        ops: the kernels.
    """

    def __init__(self, name: str | None, hidden: int, eps: float, reader: WeightReader, ops: Ops) -> None:
        self._eps = eps
        self._ops = ops
        self._norm: Tensor | None = None
        if name is not None:
            self._norm = reader.tensor(f"{name}_norm.weight", hidden, dtype=reader.wide)
            self._proj = reader.tensor(f"{name}_proj.weight", 1, hidden, dtype=reader.wide)[0]

    def forward(self, stream: ResidualStream) -> Tensor:
        """[tokens, hidden]: the running sum, or its mix with the banks (identity while there are none)."""
        running = stream.running
        if running is None:
            return stream.banks[-1]
        if self._norm is None or not stream.banks:
            return running
        return self._ops.attn_res(running, stream.banks, self._norm, self._proj, self._eps)
