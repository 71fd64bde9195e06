"""The largest logit of each row, and whether the row may be drawn from at all.

The one place where a batch of greedy rows is looked at as a whole.
"""

from __future__ import annotations

from math import isfinite

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
    ids, least = values.argmax(axis=1).tolist(), values.argmin(axis=1).tolist()
    # A NaN is both the first of the largest and of the smallest; an infinity is one of them. Numbers one by
    # one: more of NumPy would have to come from memory than it takes to look at some tens of them.
    finite = [
        isfinite(values.item(row, most)) and isfinite(values.item(row, low))
        for row, (most, low) in enumerate(zip(ids, least, strict=True))
    ]
    return ids, finite
