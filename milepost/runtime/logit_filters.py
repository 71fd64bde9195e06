"""Which tokens a request may draw, one row of logits at a time, exactly.

The order of operations is fixed: penalties (`milepost.runtime.request_sampling`), then temperature,
top-k, top-p, min-p, then the draw. Each filter sees the distribution that the one before it left,
renormalised. Equal scores are told apart by the lower token id, so every outcome is deterministic.

Scores are float64, [vocab], shifted so that the largest is 0; ids are ascending int64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from milepost.types import SamplingParams

__all__ = ["allowed_ids", "best_ids", "log_softmax", "scaled_scores"]

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

_FIRST_LOOK = 256


def scaled_scores(logits: Floats, temperature: float) -> Floats:
    """Logits over temperature, less their largest."""
    # The shift comes first: a tiny temperature may then overflow to -inf but never to inf or NaN.
    with np.errstate(over="ignore"):
        return np.asarray((logits - logits.max()) / temperature, dtype=np.float64)


def allowed_ids(scores: Floats, params: SamplingParams) -> Ids:
    """Tokens that top-k, top-p and min-p leave, in this order; never none."""
    ids = np.arange(scores.size, dtype=np.int64)
    if 0 < params.top_k < ids.size:
        ids = best_ids(scores, params.top_k)
    if params.top_p < 1.0:
        ids = _nucleus(scores, ids, params.top_p)
    if params.min_p > 0.0:
        ids = ids[scores[ids] >= np.log(params.min_p)]  # the largest score is 0
    return ids


def best_ids(scores: Floats, count: int) -> Ids:
    """The `count` best tokens, the lower id first among equals; ascending ids."""
    if count >= scores.size:
        return np.arange(scores.size, dtype=np.int64)
    last = np.partition(scores, -count)[-count]
    above = np.flatnonzero(scores > last)
    level = np.flatnonzero(scores == last)[: count - above.size]
    return np.sort(np.concatenate([above, level])).astype(np.int64)


def _nucleus(scores: Floats, ids: Ids, top_p: float) -> Ids:
    """The fewest best tokens of `ids` whose probability together is at least `top_p`."""
    weights = np.exp(scores[ids])
    probabilities = weights / weights.sum()
    # Most often a few tokens are enough: look at more and more of the best before sorting them all.
    count = _FIRST_LOOK
    while True:
        best = best_ids(probabilities, count)
        order = best[np.argsort(-probabilities[best], kind="stable")]
        reached = np.cumsum(probabilities[order])
        if count >= ids.size or reached[-1] >= top_p:
            needed = int(np.searchsorted(reached, top_p)) + 1
            return np.sort(ids[order[:needed]])
        count *= 16


def log_softmax(logits: Floats) -> Floats:
    """Natural log-probabilities of a row of logits."""
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float64)
