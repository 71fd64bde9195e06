"""Snapshot policies on traces that know tokens only by whole blocks.

Where inside a block two prompts part, such a trace can't tell: a state that stands inside one would
never be found again, and a real engine's would be found as far as the block's beginning at least. So
every place that a policy asks for moves down to the block's beginning, periods up to whole blocks, and
the last token of an answer, which the trace does not know, to the prompt's last whole block.
"""

from __future__ import annotations

import msgspec

from milepost.prefix.plan import PlannedSnapshot, PromptView, Reason, SnapshotPlan, SnapshotPolicy

__all__ = ["Blockwise"]


class Blockwise:
    """`policy`, with its places moved to whole blocks of `block_size` tokens."""

    def __init__(self, policy: SnapshotPolicy, block_size: int) -> None:
        self._policy = policy
        self._block_size = block_size

    @property
    def name(self) -> str:
        """The policy's own."""
        return self._policy.name

    def observe(self, view: PromptView) -> None:
        """Let the policy learn."""
        self._policy.observe(view)

    def plan(self, view: PromptView) -> SnapshotPlan:
        """The policy's plan; of several places that fall together the last one's reason counts."""
        plan = self._policy.plan(view)
        places: dict[int, Reason] = {}
        for point in plan.points:
            places[self._down(point.position)] = point.reason
        if plan.last:
            places.setdefault(self._down(view.num_prompt), Reason.LAST)
        return msgspec.structs.replace(
            plan,
            points=tuple(
                PlannedSnapshot(position, places[position])
                for position in sorted(places)
                if position > view.hit
            ),
            periods=tuple(sorted({self._up(period) for period in plan.periods})),
            spare_period=self._up(plan.spare_period),
            output_ends=False,
            last=False,
        )

    def _down(self, position: int) -> int:
        return position - position % self._block_size

    def _up(self, period: int) -> int:
        return -(-period // self._block_size) * self._block_size
