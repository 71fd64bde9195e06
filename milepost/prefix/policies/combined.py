"""Several policies at once: ``a+b``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from milepost.prefix.plan import PromptView, SnapshotPlan, SnapshotPolicy
from milepost.prefix.policies.places import points_of

__all__ = ["Combined"]


class Combined:
    """Leaves a snapshot wherever one of `policies` would."""

    __slots__ = ("_policies", "name")

    def __init__(self, policies: Sequence[SnapshotPolicy]) -> None:
        self._policies = tuple(policies)
        self.name = "+".join(policy.name for policy in policies)

    def plan(self, view: PromptView) -> SnapshotPlan:
        """All plans in one; a position that several want keeps the reason of most worth."""
        plans = [policy.plan(view) for policy in self._policies]
        wanted = ((point.position, point.reason) for plan in plans for point in plan.points)
        return SnapshotPlan(
            points=points_of(view, wanted),
            periods=_without_multiples(period for plan in plans for period in plan.periods),
            spare_period=min((plan.spare_period for plan in plans if plan.spare_period), default=0),
            output_ends=any(plan.output_ends for plan in plans),
            last=any(plan.last for plan in plans),
        )

    def observe(self, view: PromptView) -> None:
        """Let each of them learn."""
        for policy in self._policies:
            policy.observe(view)


def _without_multiples(periods: Iterable[int]) -> tuple[int, ...]:
    """The periods, ascending, that are not multiples of another one: those add no place."""
    kept: list[int] = []
    for period in sorted(set(periods)):
        if all(period % smaller for smaller in kept):
            kept.append(period)
    return tuple(kept)
