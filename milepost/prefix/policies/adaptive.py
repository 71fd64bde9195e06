"""The default policy: everything that is likely to be looked for, and a dense spread while memory is free."""

from __future__ import annotations

from milepost.errors import ConfigError
from milepost.prefix.plan import PromptView, Reason, SnapshotPlan
from milepost.prefix.policies.places import branch_point, points_of

__all__ = ["SPARE_PERIOD", "Adaptive"]

SPARE_PERIOD = 64
"""Tokens between spare snapshots unless something else is asked for; 0 for no spare ones."""


class Adaptive:
    """Message ends, branch point, prompt tail and last token, and spare snapshots every `spare` tokens.

    It keeps to where the next request can look: a message end before the generation suffix for the next
    turn, one token before the prompt's end for the same prompt again, the last token for a prompt that
    goes on from the output. The spare ones are for a prompt that leaves this one where nobody could know.
    What is kept of all this when memory gets short is the eviction policy's choice.

    Raises:
        ConfigError: a negative `spare`.
    """

    __slots__ = ("_spare", "name")

    def __init__(self, spare: int = SPARE_PERIOD) -> None:
        if spare < 0:
            raise ConfigError(f"adaptive's spare must be 0 (none) or a number of tokens. Given: {spare}.")
        self._spare = spare
        self.name = "adaptive" if spare == SPARE_PERIOD else f"adaptive(spare={spare})"

    def plan(self, view: PromptView) -> SnapshotPlan:
        """The plan; of an output that the next turn will strip it keeps neither message ends nor the end."""
        wanted = [(position, Reason.TURN) for position in view.message_ends]
        wanted += branch_point(view)
        if view.matched < view.left < view.num_tokens:  # the next to part there will find a state
            wanted.append((view.left, Reason.BRANCH))
        wanted.append((view.num_prompt - 1, Reason.PROMPT_TAIL))
        return SnapshotPlan(
            points=points_of(view, wanted),
            spare_period=self._spare,
            output_ends=view.output_reusable,
            last=view.output_reusable,
        )

    def observe(self, view: PromptView) -> None:
        """Learn nothing: what a workload teaches is in what is evicted."""
