"""The places of a few snapshots that save most, given how deep requests overlap: a dynamic programme.

A request that overlaps by d tokens resumes from the deepest snapshot at most at d, and computes the rest
of the overlap anew. Let b_t be the deepest snapshot at most at depth d_t that stands in any case. Over
depths d_0 < d_1 < ... with weights w_i, m snapshots more save at best

    saved[m][j] = max over i < j of  saved[m-1][i] + sum over t = i .. j-1 of w_t * max(0, d_i - b_t)

in the first j depths, where d_i is the deepest of them. A snapshot between two depths can move up to the
next one and saves more there, so only depths come into question. With nothing standing this is the
dynamic programme of sparse prefix caching; with n depths it takes n * n steps for each snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["best_places"]


def best_places(
    depths: Sequence[int], weights: Sequence[float], snapshots: int, standing: Sequence[int] = ()
) -> tuple[int, ...]:
    """The places, ascending, of at most `snapshots` snapshots that save most; fewer if more save nothing.

    Args:
        depths: overlap depths in tokens, ascending, each above 0.
        weights: how often each occurs.
        snapshots: how many to place.
        standing: places of snapshots that stand in any case, ascending.
    """
    gains = _gains(np.array(depths, np.float64), np.array(weights, np.float64), standing)
    saved = np.zeros(len(depths) + 1)
    choices: list[npt.NDArray[np.int64]] = []
    for _ in range(min(snapshots, len(depths))):
        choice, better = _one_more(saved, gains)
        if not (choice >= 0).any():
            break  # every depth has a snapshot
        choices.append(choice)
        saved = better
    places = []
    end = len(depths)
    for choice in reversed(choices):
        index = int(choice[end])
        if index >= 0:  # else this many snapshots save no more than one fewer
            places.append(depths[index])
            end = index
    return tuple(reversed(places))


def _gains(
    depths: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], standing: Sequence[int]
) -> npt.NDArray[np.float64]:
    """[i, j]: what a snapshot at depth i saves to depths i to j - 1; minus infinity where there are none."""
    known = np.array([0, *standing], np.float64)
    behind = known[np.searchsorted(known, depths, side="right") - 1]
    each = np.triu(np.maximum(depths[:, None] - behind[None, :], 0.0) * weights[None, :])
    gains = np.zeros((len(depths), len(depths) + 1))
    np.cumsum(each, axis=1, out=gains[:, 1:])
    gains[np.tril_indices(len(depths), 0, len(depths) + 1)] = -np.inf
    return gains


def _one_more(
    saved: npt.NDArray[np.float64], gains: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """With one snapshot more, by number of depths: the deepest one's (-1: not needed), and what they save."""
    if not len(gains):
        return np.full(len(saved), -1, np.int64), saved
    totals = saved[:-1, None] + gains
    choice = totals.argmax(axis=0)
    better = totals[choice, np.arange(len(saved))]
    needed = better > saved
    return np.where(needed, choice, -1), np.where(needed, better, saved)
