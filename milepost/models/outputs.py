"""What a model gives back for one step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

__all__ = ["StepOutput"]


@dataclass(frozen=True, eq=False)
class StepOutput:
    """One step's results; its states and KV are in their pages.

    Attributes:
        logits: of the tokens in `StepInputs.sample_index`, float32 (float64 of a float64 model).
            # [samples, vocab]
        finite: whether all that the step computed for a row is finite; of the others nothing may be
            reused. # [rows] bool
    """

    logits: Tensor
    finite: Tensor
