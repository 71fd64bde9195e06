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

    Args:
        ops: the kernels.
        running: what it starts from, [tokens, hidden]; the stream takes it over.
        banks: sums banked before.

    Attributes:
        running: the sum since the last bank, [tokens, hidden].
        banks: banked sums, [tokens, hidden] each; empty without Attention Residuals.
    """

    def __init__(self, ops: Ops, running: Tensor, banks: Sequence[Tensor] = ()) -> None:
        self._ops = ops
        self.running = running
        self.banks = list(banks)

    def add(self, delta: Tensor) -> None:
        """Add a sub-layer's output."""
        self._ops.add(self.running, delta)

    def start_block(self, delta: Tensor) -> None:
        """Bank the running sum and go on from a sub-layer's output, which the stream takes over."""
        self.banks.append(self.running)
        self.running = delta

    def take(self, index: Tensor) -> ResidualStream:
        """The stream of some tokens only."""
        running, *banks = [self._ops.take_rows(x, index) for x in (self.running, *self.banks)]
        return ResidualStream(self._ops, running, banks)


class ResidualRead:
    """One place that reads the stream, and the norm that every reader begins with.

    Args:
        name: what the site's two tensors start with, such as ``mlp_res``; None for a plain sum.
        norm: name of the norm's weight.
        hidden: the stream's width.
        eps: of the norm, and of the one inside the scores.
        reader: scoped to whatever holds the site and the norm.
        ops: the kernels.
    """

    def __init__(
        self, name: str | None, norm: str, hidden: int, eps: float, reader: WeightReader, ops: Ops
    ) -> None:
        self._eps = eps
        self._ops = ops
        self._norm = reader.tensor(norm, hidden, dtype=reader.wide)
        self._site: Tensor | None = None
        if name is not None:
            self._site = reader.product(f"{name}_norm.weight", f"{name}_proj.weight", hidden)

    def forward(self, stream: ResidualStream) -> Tensor:
        """[tokens, hidden]: the norm of the running sum, or of its mix with the banks."""
        if self._site is None or not stream.banks:
            return self._ops.rms_norm(stream.running, self._norm, self._eps)
        return self._ops.attn_res(stream.running, stream.banks, self._site, self._norm, self._eps)
