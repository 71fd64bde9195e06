"""Where a request's snapshots shall stand: what a snapshot policy is asked, and what it answers.

A policy is asked once a life, at admission, and answers with plain data. The scheduler follows the
plan step by step and never asks again, so that a decode step costs one comparison.
"""

from __future__ import annotations

import enum
from typing import Protocol

import msgspec

__all__ = ["PlannedSnapshot", "PromptView", "Reason", "SnapshotPlan", "SnapshotPolicy"]


class Reason(enum.Enum):
    """Why a snapshot stands where it stands."""

    TURN = "turn"  # a message ends here
    BRANCH = "branch"  # a prompt left what was cached here
    PROMPT_TAIL = "prompt_tail"  # one token before the prompt's end, where an identical resend looks
    LAST = "last"  # the last computed token of a request
    PERIOD = "period"  # a multiple of a period
    BUDGET = "budget"  # where it minimises expected recomputation
    SPARE = "spare"  # only because pages were free; the first to go
    PREEMPTED = "preempted"  # where a preempted request will go on
    JUNCTION = "junction"  # asked for by a request that waits for this one

    # Members are compared by identity. An enum's own hash goes by the name, in Python, each time.
    __hash__ = object.__hash__


class PlannedSnapshot(msgspec.Struct, frozen=True):
    """One place: the state after exactly `position` tokens."""

    position: int
    reason: Reason


class SnapshotPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Where one life of a request leaves snapshots.

    Attributes:
        points: places by ascending position, each position once.
        periods: also at every multiple of each of these token counts, in prompt and output.
        spare_period: also at every multiple of this while pages are free; 0 for none.
        output_ends: also wherever the model itself ends a message.
        last: also at the last computed token when the request ends.
    """

    points: tuple[PlannedSnapshot, ...] = ()
    periods: tuple[int, ...] = ()
    spare_period: int = 0
    output_ends: bool = False
    last: bool = False


class PromptView(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may know of a request when its life begins.

    Attributes:
        num_tokens: known tokens: the prompt, and after a preemption what was drawn too.
        num_prompt: tokens of the prompt.
        hit: tokens that are not computed again; snapshots stand behind it.
        matched: tokens whose KV is cached, at least `hit`. Above `hit` it is a branch point: the prompt
            leaves what is cached there, deeper than the deepest snapshot.
        message_ends: token positions at which messages of the prompt end, ascending, as the request
            gave them: before the generation suffix.
        match_unit: spacing of the full keys.
        output_reusable: whether a later prompt will hold the output as it was drawn.
        request_id: whose prompt it is, for policies that know a trace.
        left: where the prompt leaves what was cached and has been evicted, inside an earlier prompt; 0 if
            nowhere, or if nobody remembers.
    """

    num_tokens: int
    num_prompt: int
    hit: int
    matched: int
    message_ends: tuple[int, ...]
    match_unit: int
    output_reusable: bool
    request_id: str = ""
    left: int = 0


class SnapshotPolicy(Protocol):
    """Chooses where snapshots stand; the same classes run in the engine and in the simulator."""

    @property
    def name(self) -> str:
        """The policy as it is written on the command line."""
        ...

    def plan(self, view: PromptView) -> SnapshotPlan:
        """The plan of a life that begins with `view`; points lie above ``hit``, at most at ``num_tokens``."""
        ...

    def observe(self, view: PromptView) -> None:
        """Learn from a request; called once for each request, before its first `plan`."""
        ...
