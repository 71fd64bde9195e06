"""Policies that learn nothing: each one rule."""

from __future__ import annotations

from milepost.errors import ConfigError
from milepost.prefix.plan import PromptView, Reason, SnapshotPlan
from milepost.prefix.policies.places import branch_point, points_of

__all__ = ["Branch", "Every", "Last", "NoSnapshots", "PromptTail", "Turns"]


class _Unlearning:
    """What the policies have in common that know everything from the start."""

    __slots__ = ()

    def observe(self, view: PromptView) -> None:
        """Learn nothing."""


class NoSnapshots(_Unlearning):
    """Leaves nothing; what is hit then is only what preemption and waiting requests leave."""

    __slots__ = ()
    name = "none"

    def plan(self, view: PromptView) -> SnapshotPlan:  # noqa: ARG002 - the protocol's signature
        """An empty plan."""
        return SnapshotPlan()


class Every(_Unlearning):
    """At every multiple of `period` tokens, in prompt and output.

    Raises:
        ConfigError: a period below 1.
    """

    __slots__ = ("_plan", "name")

    def __init__(self, period: int) -> None:
        if period < 1:
            raise ConfigError(f"snapshot_policy: every needs a period of at least 1 token. Given: {period}.")
        self.name = f"every({period})"
        self._plan = SnapshotPlan(periods=(period,))

    def plan(self, view: PromptView) -> SnapshotPlan:  # noqa: ARG002 - the protocol's signature
        """The same for everybody."""
        return self._plan


class Last(_Unlearning):
    """At the last computed token of each request."""

    __slots__ = ()
    name = "last"

    def plan(self, view: PromptView) -> SnapshotPlan:  # noqa: ARG002 - the protocol's signature
        """The same for everybody, whether a later prompt will hold the output or not."""
        return SnapshotPlan(last=True)


class PromptTail(_Unlearning):
    """One token before the prompt's end: an identical prompt can hit all but its last token."""

    __slots__ = ()
    name = "prompt-tail"

    def plan(self, view: PromptView) -> SnapshotPlan:
        """One point, unless it is hit already."""
        return SnapshotPlan(points=points_of(view, [(view.num_prompt - 1, Reason.PROMPT_TAIL)]))


class Turns(_Unlearning):
    """Where messages end, those of the prompt and those that the model ends itself."""

    __slots__ = ()
    name = "turns"

    def plan(self, view: PromptView) -> SnapshotPlan:
        """The message ends; none in an output that no later prompt will hold as it was drawn."""
        ends = points_of(view, ((position, Reason.TURN) for position in view.message_ends))
        return SnapshotPlan(points=ends, output_ends=view.output_reusable)


class Branch(_Unlearning):
    """Where prompts are seen to part, and the last token: the admission of Marconi (MLSys 2025)."""

    __slots__ = ()
    name = "branch"

    def plan(self, view: PromptView) -> SnapshotPlan:
        """The branch point, if there is one, and the end of the request."""
        return SnapshotPlan(points=points_of(view, branch_point(view)), last=True)
