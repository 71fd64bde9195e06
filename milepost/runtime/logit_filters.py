"""Which tokens a request may draw, one row of logits at a time, exactly.

The order of operations is fixed: logit bias, penalties, then what may be drawn at all
(`milepost.runtime.request_sampling`), then temperature, top-k, top-p, min-p, then the draw. Each filter
sees the distribution that the one before it left, renormalised. Equal scores are told apart by the lower
token id, so every outcome is deterministic.

Scores are float64, [vocab], shifted so that the largest is 0; ids are ascending int64.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from milepost.types import SamplingParams

__all__ = ["allowed_ids", "best_ids", "log_softmax", "scaled_scores"]

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

_DEPTHS = (2.0, 4.0, 8.0, 16.0)  # how far below the largest score the best are looked for first
_LIKELY = (1e-3, 1e-4, 1e-5)  # at most a thousand tokens, ten thousand ... are that probable
_ROUNDING = 1e-9  # of a sum that is taken in another order
_FEW = 1024  # as many are sorted


def scaled_scores(logits: Floats, temperature: float) -> Floats:
    """Logits over temperature, less their largest."""
    # The shift comes first: a tiny temperature may then overflow to -inf but never to inf or NaN.
    with np.errstate(over="ignore"):
        scores = np.asarray(logits - logits.max(), dtype=np.float64)
        scores /= temperature
    return scores


def allowed_ids(scores: Floats, params: SamplingParams) -> Ids:
    """Tokens that top-k, top-p and min-p leave, in this order; never none."""
    least = np.log(params.min_p) if params.min_p > 0.0 else -np.inf  # the largest score is 0
    if 0 < params.top_k < scores.size:
        near = _near(scores, params.top_k)
        ids = near[best_ids(scores[near], params.top_k)]
        ids = _nucleus(scores[ids], ids, params.top_p)
    elif params.top_p < 1.0:
        ids = _nucleus(scores, np.arange(scores.size, dtype=np.int64), params.top_p)
    else:
        return np.flatnonzero(scores >= least)
    return ids[scores[ids] >= least]


def _near(scores: Floats, count: int) -> Ids:
    """A few of the best tokens, at least `count` of them: the smaller, the less there is to sort."""
    for depth in _DEPTHS:
        ids = np.flatnonzero(scores > -depth)
        if ids.size >= count:
            return ids
    return np.arange(scores.size, dtype=np.int64)


def best_ids(scores: Floats, count: int) -> Ids:
    """The `count` best tokens, the lower id first among equals; ascending ids."""
    if count >= scores.size:
        return np.arange(scores.size, dtype=np.int64)
    last = np.partition(scores, -count)[-count]
    above = np.flatnonzero(scores > last)
    level = np.flatnonzero(scores == last)[: count - above.size]
    return np.sort(np.concatenate([above, level])).astype(np.int64)


def _nucleus(scores: Floats, ids: Ids, top_p: float) -> Ids:
    """The fewest best tokens of `ids`, with these scores, whose probability together is at least `top_p`."""
    if top_p >= 1.0:
        return ids
    chances = np.exp(scores)
    chances /= chances.sum()
    # Most often the likely ones are enough, and they are few.
    for likely in _LIKELY:
        places = np.flatnonzero(chances >= likely)
        if chances[places].sum() > top_p + _ROUNDING:
            return ids[_fewest(chances, places, top_p)]
    return ids[_fewest(chances, np.arange(ids.size), top_p)]


def _fewest(chances: Floats, places: Ids, mass: float) -> Ids:
    """The fewest best of `places` whose chances reach `mass` together, all if they don't; ascending.

    Halves what is in question until it is small (C. Hoare's quickselect, 1961, by weight): sorting a whole
    vocabulary would take far longer.
    """
    sure: list[Ids] = []
    reached = 0.0
    while places.size > _FEW:
        here = chances[places]
        better = here > np.partition(here, places.size // 2)[places.size // 2]
        if not better.any():
            break  # the best half are equals
        gain = float(here[better].sum())
        if reached + gain >= mass:
            places = places[better]
        else:
            sure.append(places[better])
            reached += gain
            places = places[~better]
    order = places[np.argsort(-chances[places], kind="stable")]
    needed = int(np.searchsorted(reached + np.cumsum(chances[order]), mass)) + 1
    return np.sort(np.concatenate([*sure, order[:needed]]))


def log_softmax(logits: Floats) -> Floats:
    """Natural log-probabilities of a row of logits."""
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), dtype=np.float64)
