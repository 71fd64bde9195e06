"""How deep requests overlap with what came before: a histogram of bounded size that forgets."""

from __future__ import annotations

from bisect import bisect_left

__all__ = ["DepthHistogram"]

_HALF_LIFE = 1024  # overlaps
_FORGOTTEN = 1 / 32  # a depth seen once is dropped after five half-lives


class DepthHistogram:
    """Weights by depth in tokens.

    Depths are exact as long as there are at most `max_bins` of them: system prompts are shared at one
    depth by everybody, and a snapshot a few tokens behind it would be of no use. When there are more,
    the two neighbours become one whose merging costs least, at the depth of the lower: a snapshot there
    serves both.
    """

    __slots__ = ("_added", "_max_bins", "depths", "weights")

    def __init__(self, max_bins: int) -> None:
        self._max_bins = max_bins
        self._added = 0
        self.depths: list[int] = []
        self.weights: list[float] = []

    def add(self, depth: int) -> None:
        """Count one overlap of `depth` tokens; time for at most `max_bins` comparisons."""
        self._added += 1
        if self._added % _HALF_LIFE == 0:
            self._forget()
        index = bisect_left(self.depths, depth)
        if index < len(self.depths) and self.depths[index] == depth:
            self.weights[index] += 1.0
            return
        self.depths.insert(index, depth)
        self.weights.insert(index, 1.0)
        if len(self.depths) > self._max_bins:
            self._merge_nearest()

    def _merge_nearest(self) -> None:
        # The cost: tokens that the upper bin's requests compute more, were there a snapshot at each.
        depths, weights = self.depths, self.weights
        upper = min(range(1, len(depths)), key=lambda i: weights[i] * (depths[i] - depths[i - 1]))
        weights[upper - 1] += weights.pop(upper)
        depths.pop(upper)

    def _forget(self) -> None:
        kept = [(d, w / 2) for d, w in zip(self.depths, self.weights, strict=True) if w / 2 >= _FORGOTTEN]
        self.depths = [depth for depth, _ in kept]
        self.weights = [weight for _, weight in kept]
