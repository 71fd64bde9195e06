"""A fixed number of snapshots a prompt: its certain places first, then where they should save most."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from milepost.errors import ConfigError
from milepost.prefix.plan import PromptView, Reason, SnapshotPlan
from milepost.prefix.policies.depths import DepthHistogram
from milepost.prefix.policies.placement import best_places
from milepost.prefix.policies.places import branch_point, points_of

__all__ = ["Budget"]

_MAX_BINS = 128
_PARTS = 16  # even distances in what is computed: at most so many, and about half as many at least
_LEAST = 2048  # tokens between even distances: what is computed quickly is not worth a guess


class Budget:
    """Leaves at most `snapshots` in the part of each prompt that is computed.

    In this order, as far as they go:

    1. the prompt's end: the last message end, or one token before the prompt's end. On both traces that we
       tune on, most of what is reused is the whole of an earlier prompt (docs/log.md), which no statistics
       of depths can foretell: it is as long as it is.
    2. the branch point, if the prompt has one: two have parted there, so a third may.
    3. where they save most beyond those two and the hit: half of the chance goes by how deep earlier
       requests overlapped, half is the same for every depth, since this prompt is none of those. What was
       hit already needs no snapshot, so only depths behind it count.

    Args:
        snapshots: how many, at least 1; more than 128 are as good as 128.
        name: how it was written, for a budget given in bytes.

    Raises:
        ConfigError: fewer than one snapshot.
    """

    __slots__ = ("_histogram", "_snapshots", "name")

    def __init__(self, snapshots: int, *, name: str | None = None) -> None:
        if snapshots < 1:
            raise ConfigError(f"budget needs at least 1 snapshot a prompt. Given: {snapshots}.")
        self.name = name or f"budget(snapshots={snapshots})"
        self._snapshots = min(snapshots, _MAX_BINS)
        self._histogram = DepthHistogram(_MAX_BINS)

    def plan(self, view: PromptView) -> SnapshotPlan:
        """The certain places and the best ones besides that this life passes."""
        certain = [place for place in (_end_of(view), *branch_point(view)) if place[0] > view.hit]
        wanted = dict(certain[: self._snapshots])
        left = self._snapshots - len(wanted)
        if left:
            chances = self._chances(view.hit, _end_of(view)[0])
            more = best_places([*chances], [*chances.values()], left, (view.hit, *sorted(wanted)))
            wanted = dict.fromkeys(more, Reason.BUDGET) | wanted
        return SnapshotPlan(points=points_of(view, wanted.items()))

    def observe(self, view: PromptView) -> None:
        """Note how much of the prompt was cached, whether its state was or not."""
        depth = min(view.matched, view.num_tokens - 1)  # the last token is computed in any case
        if depth > 0:
            self._histogram.add(depth)

    def _chances(self, hit: int, end: int) -> dict[int, float]:
        """Weights of overlaps between the two, by ascending depth."""
        depths, weights = self._histogram.depths, self._histogram.weights
        known = slice(bisect_right(depths, hit), bisect_left(depths, end))
        chances = dict(zip(depths[known], weights[known], strict=True))
        # Powers of two, so that prompts of similar length that share a prefix share the places on it.
        step = max(_LEAST, 1 << ((end - hit) // _PARTS).bit_length())
        evenly = range((hit // step + 1) * step, end, step)
        each = (sum(chances.values()) or 1.0) / max(len(evenly), 1)
        for depth in evenly:
            chances[depth] = chances.get(depth, 0.0) + each
        return {depth: chances[depth] for depth in sorted(chances)}


def _end_of(view: PromptView) -> tuple[int, Reason]:
    """Where the next prompt looks that goes on from this one, or is the same."""
    if view.message_ends and view.message_ends[-1] > view.hit:
        return view.message_ends[-1], Reason.TURN
    return view.num_prompt - 1, Reason.PROMPT_TAIL
