"""The largest logit of each row, and whether the row may be drawn from at all.

The one place where a batch of greedy rows is looked at as a whole.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

__all__ = ["greedy"]


def greedy(logits: Tensor) -> tuple[list[int], list[bool]]:
    """The first of the largest logits of each row, and whether all of the row is finite.

    Args:
        logits: [rows, vocab], float; not changed.

    Returns:
        [rows] token ids, of no meaning where a row is not finite; [rows] whether it is.
    """
    # NumPy searches with vector instructions along a row, torch does not: some ten times slower. And a
    # torch call between steps costs far more than its work, for its code has left the caches by then.
    # NumPy knows no bfloat16; a wider number compares the same.
    wide = logits if logits.dtype.itemsize >= 4 else logits.float()
    values = wide.numpy(force=True)
    rows, ids = np.arange(len(values)), values.argmax(axis=1)
    # A NaN is both the first of the largest and of the smallest; an infinity is one of them.
    finite = np.isfinite(values[rows, ids]) & np.isfinite(values[rows, values.argmin(axis=1)])
    return ids.tolist(), finite.tolist()
