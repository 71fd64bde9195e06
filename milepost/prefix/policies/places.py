"""From the places that a policy wants to the points of a plan: in range, in order, each once."""

from __future__ import annotations

from collections.abc import Iterable

from milepost.prefix.plan import PlannedSnapshot, PromptView, Reason

__all__ = ["REASONS_BY_WORTH", "branch_point", "points_of"]

REASONS_BY_WORTH = (
    Reason.JUNCTION,  # somebody waits for it
    Reason.PREEMPTED,  # its owner will be back
    Reason.BRANCH,  # two prompts are known to part here, so a third may
    Reason.TURN,  # the next turn of an append-only chat looks here
    Reason.LAST,  # and here, if it holds the output as it was drawn
    Reason.PROMPT_TAIL,  # of use to an identical prompt alone
    Reason.BUDGET,  # from statistics over all prompts
    Reason.PERIOD,  # from nothing
    Reason.SPARE,
)
"""Which reason a snapshot keeps that has several: the first of these, by how likely it is to be used."""

_RANK = {reason: rank for rank, reason in enumerate(REASONS_BY_WORTH)}


def points_of(view: PromptView, wanted: Iterable[tuple[int, Reason]]) -> tuple[PlannedSnapshot, ...]:
    """Those of the `wanted` positions that this life computes: above ``hit``, at most ``num_tokens``.

    Ascending, each position once, with the reason that comes first in `REASONS_BY_WORTH`.
    """
    reasons: dict[int, Reason] = {}
    for position, reason in wanted:
        if not view.hit < position <= view.num_tokens:
            continue
        known = reasons.get(position)
        if known is None or _RANK[reason] < _RANK[known]:
            reasons[position] = reason
    return tuple(PlannedSnapshot(position, reasons[position]) for position in sorted(reasons))


def branch_point(view: PromptView) -> tuple[tuple[int, Reason], ...]:
    """The place where the prompt leaves what is cached, if that is deeper than what it hits.

    A prompt that lies in the cache as a whole leaves it nowhere. The next such prompt can hit all of
    it but the last token, which is always computed: that is the place then.
    """
    position = min(view.matched, view.num_tokens - 1)
    return ((position, Reason.BRANCH),) if position > view.hit else ()
