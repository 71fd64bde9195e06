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
_LEARNT_AFTER = 16  # overlaps


class Budget:
    """Leaves at most `snapshots` in the part of each prompt that is computed.

    In this order, as far as they go:

    1. the prompt's end: the last message end, or one token before the prompt's end. On both traces that we
       tune on, most of what is reused is the whole of an earlier prompt (docs/log.md), which no statistics
       of depths can foretell: it is as long as it is.
    2. the branch point, if the prompt has one: two have parted there, so a third may.
    3. where they save most beyond those two and the hit, by how deep earlier requests overlapped. What was
       hit already needs no snapshot, so only depths behind it count. Until enough overlaps were seen every
       depth is held for equally likely, for which equal distances are best.

    Args:
        snapshots: how many, at least 1; more than 128 are as good as 128.
        name: how it was written, for a budget given in bytes.

    Raises:
        ConfigError: fewer than one snapshot.
    """

    __slots__ = ("_histogram", "_num_learnt", "_snapshots", "name")

    def __init__(self, snapshots: int, *, name: str | None = None) -> None:
        if snapshots < 1:
            raise ConfigError(f"budget needs at least 1 snapshot a prompt. Given: {snapshots}.")
        self.name = name or f"budget(snapshots={snapshots})"
        self._snapshots = min(snapshots, _MAX_BINS)
        self._histogram = DepthHistogram(_MAX_BINS)
        self._num_learnt = 0

    def plan(self, view: PromptView) -> SnapshotPlan:
        """The certain places and the best ones besides that this life passes."""
        certain = [place for place in (_end_of(view), *branch_point(view)) if place[0] > view.hit]
        wanted = dict(certain[: self._snapshots])
        left = self._snapshots - len(wanted)
        if left:
            more = self._likely(view, left, sorted(wanted))
            wanted = dict.fromkeys(more, Reason.BUDGET) | wanted
        return SnapshotPlan(points=points_of(view, wanted.items()))

    def observe(self, view: PromptView) -> None:
        """Note how much of the prompt was cached, whether its state was or not."""
        depth = min(view.matched, view.num_tokens - 1)  # the last token is computed in any case
        if depth < 1:
            return
        self._histogram.add(depth)
        self._num_learnt += 1

    def _likely(self, view: PromptView, snapshots: int, certain: list[int]) -> tuple[int, ...]:
        end = _end_of(view)[0]
        if self._num_learnt < _LEARNT_AFTER:
            return _evenly(view, snapshots, end)
        depths, weights = self._histogram.depths, self._histogram.weights
        first, last = bisect_right(depths, view.hit), bisect_left(depths, end)
        return best_places(depths[first:last], weights[first:last], snapshots, (view.hit, *certain))


def _end_of(view: PromptView) -> tuple[int, Reason]:
    """Where the next prompt looks that goes on from this one, or is the same."""
    if view.message_ends and view.message_ends[-1] > view.hit:
        return view.message_ends[-1], Reason.TURN
    return view.num_prompt - 1, Reason.PROMPT_TAIL


def _evenly(view: PromptView, snapshots: int, end: int) -> tuple[int, ...]:
    """Equal distances from the hit to the end, at whole units: prompts of similar length share them."""
    length = end - view.hit
    places = (view.hit + i * length // (snapshots + 1) for i in range(1, snapshots + 1))
    return tuple(place - place % view.match_unit for place in places)
