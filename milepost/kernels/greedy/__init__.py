"""The largest of each row of logits, and whether the row can be drawn from at all."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

from milepost.kernels.checks import check_shape

__all__ = ["Greedy", "check"]


class Greedy(Protocol):
    """Find the largest logits."""

    def __call__(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Find.

        Args:
            logits: [rows, vocab].

        Returns:
            [rows] int64, the first of each row's largest, without meaning in a row that is not finite;
            and [rows] bool, whether all of a row's logits are finite.
        """
        ...


def check(logits: Tensor) -> None:
    """Check shapes; see `Greedy`.

    Raises:
        InvariantError: another number of dims.
    """
    check_shape("greedy", "logits", logits, None, None)
