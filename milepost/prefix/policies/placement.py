"""The places of a few snapshots that save most, given how deep requests overlap: a dynamic programme.

A request that overlaps by d tokens resumes from the deepest snapshot at most at d, and computes the rest
of the overlap anew. Over depths d_0 < d_1 < ... with weights w_i, m snapshots save at best

    saved[m][j] = max over i < j of  saved[m-1][i] + d_i * (w_i + ... + w_{j-1})

in the first j depths, where d_i is the deepest snapshot. A snapshot between two depths can move up to the
next one and saves more there, so only depths come into question. This is the dynamic programme of sparse
prefix caching; with n depths it takes n * n steps for each snapshot.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["Placement"]


class Placement:
    """The best places for at most `snapshots` snapshots, for prompts of every length.

    Args:
        depths: overlap depths in tokens, ascending, each above 0.
        weights: how often each occurs.
        snapshots: how many snapshots a prompt may leave.
    """

    __slots__ = ("_choices", "_depths")

    def __init__(self, depths: Sequence[int], weights: Sequence[float], snapshots: int) -> None:
        self._depths = list(depths)
        self._choices: list[npt.NDArray[np.int64]] = []
        gains = _gains(np.array(depths, np.float64), np.array(weights, np.float64))
        saved = np.zeros(len(depths) + 1)
        for _ in range(min(snapshots, len(depths))):
            choice, better = _one_more(saved, gains)
            if not (choice >= 0).any():
                break  # every depth has a snapshot
            self._choices.append(choice)
            saved = better

    def best(self, num_tokens: int) -> tuple[int, ...]:
        """The places, ascending, that save most among overlaps of at most `num_tokens` tokens.

        A table look-up for each snapshot.
        """
        end = bisect_right(self._depths, num_tokens)
        places = []
        for choice in reversed(self._choices):
            index = int(choice[end])
            if index >= 0:  # else this many snapshots save no more than one fewer
                places.append(self._depths[index])
                end = index
        return tuple(reversed(places))


def _gains(depths: npt.NDArray[np.float64], weights: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """[i, j]: what a snapshot at depth i saves to depths i to j - 1; minus infinity where there are none."""
    seen = np.concatenate([[0.0], np.cumsum(weights)])
    gains: npt.NDArray[np.float64] = depths[:, None] * (seen[None, :] - seen[:-1, None])
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
