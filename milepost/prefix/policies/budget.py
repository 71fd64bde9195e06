"""A fixed number of snapshots a prompt, where they are expected to save most."""

from __future__ import annotations

from milepost.errors import ConfigError
from milepost.prefix.plan import PromptView, Reason, SnapshotPlan
from milepost.prefix.policies.depths import DepthHistogram
from milepost.prefix.policies.placement import Placement
from milepost.prefix.policies.places import points_of

__all__ = ["Budget"]

_MAX_BINS = 128
_RENEWED_AFTER = 16  # overlaps, between two runs of the dynamic programme


class Budget:
    """Leaves at most `snapshots` in each prompt, placed by how deep earlier requests overlapped.

    Until it has seen enough overlaps it holds every depth for equally likely, for which equal distances
    are best.

    Args:
        snapshots: how many, at least 1; more than 128 are as good as 128.
        name: how it was written, for a budget given in bytes.

    Raises:
        ConfigError: fewer than one snapshot.
    """

    __slots__ = ("_histogram", "_placement", "_snapshots", "_unlearned", "name")

    def __init__(self, snapshots: int, *, name: str | None = None) -> None:
        if snapshots < 1:
            raise ConfigError(f"budget needs at least 1 snapshot a prompt. Given: {snapshots}.")
        self.name = name or f"budget(snapshots={snapshots})"
        self._snapshots = min(snapshots, _MAX_BINS)
        self._histogram = DepthHistogram(_MAX_BINS)
        self._placement: Placement | None = None
        self._unlearned = 0

    def plan(self, view: PromptView) -> SnapshotPlan:
        """The best places that this life passes."""
        if self._placement is None:
            places = _evenly(view, self._snapshots)
        else:
            places = self._placement.best(view.num_tokens)
        return SnapshotPlan(points=points_of(view, ((place, Reason.BUDGET) for place in places)))

    def observe(self, view: PromptView) -> None:
        """Note how much of the prompt was cached, whether its state was or not."""
        depth = min(view.matched, view.num_tokens - 1)  # the last token is computed in any case
        if depth < 1:
            return
        self._histogram.add(depth)
        self._unlearned += 1
        if self._unlearned >= _RENEWED_AFTER:
            self._unlearned = 0
            self._placement = Placement(self._histogram.depths, self._histogram.weights, self._snapshots)


def _evenly(view: PromptView, snapshots: int) -> tuple[int, ...]:
    """Equal distances over the whole prompt, at whole units so that prompts of similar length share them."""
    places = (i * view.num_tokens // (snapshots + 1) for i in range(1, snapshots + 1))
    return tuple(place - place % view.match_unit for place in places)
