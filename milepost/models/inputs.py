"""What a model needs to run one step: tensors only, no requests."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from milepost.kernels.paging import PagedKv, PagedState, Ragged

__all__ = ["StepInputs"]


@dataclass(frozen=True, eq=False)
class StepInputs:
    """One step over a ragged batch: prefill chunks and single decoded tokens side by side.

    Attributes:
        token_ids: tokens of all rows, one row after the other. # [tokens] int64
        ragged: which tokens belong to which row, and the position each row starts at.
        state: pages of the rows' KDA states; read and overwritten by the step.
        kv: pages of the rows' MLA caches; the step appends to them.
        sample_index: indices into `token_ids` of the tokens whose logits are wanted. # [samples] int64
    """

    token_ids: Tensor
    ragged: Ragged
    state: PagedState
    kv: PagedKv
    sample_index: Tensor
