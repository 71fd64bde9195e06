"""Requests as snapshot policies see them, for tests."""

from __future__ import annotations

from hypothesis import strategies as st

from milepost.prefix.plan import PromptView, SnapshotPlan

__all__ = ["places", "view_of", "views"]


def view_of(
    num_tokens: int,
    *,
    num_prompt: int | None = None,
    hit: int = 0,
    matched: int | None = None,
    message_ends: tuple[int, ...] = (),
    match_unit: int = 16,
    output_reusable: bool = True,
) -> PromptView:
    """A view of a request in its first life that hits nothing, unless something else is said."""
    return PromptView(
        num_tokens=num_tokens,
        num_prompt=num_tokens if num_prompt is None else num_prompt,
        hit=hit,
        matched=hit if matched is None else matched,
        message_ends=message_ends,
        match_unit=match_unit,
        output_reusable=output_reusable,
    )


@st.composite
def views(draw: st.DrawFn, max_tokens: int = 300) -> PromptView:
    """Anything that a scheduler may ask about."""
    num_tokens = draw(st.integers(1, max_tokens))
    num_prompt = draw(st.integers(1, num_tokens))
    hit = draw(st.integers(0, num_tokens - 1))
    ends = draw(st.lists(st.integers(1, num_prompt), max_size=6, unique=True))
    return view_of(
        num_tokens,
        num_prompt=num_prompt,
        hit=hit,
        matched=draw(st.integers(hit, num_tokens)),
        message_ends=tuple(sorted(ends)),
        match_unit=draw(st.sampled_from([1, 3, 16])),
        output_reusable=draw(st.booleans()),
    )


def places(plan: SnapshotPlan) -> dict[int, str]:
    """The plan's points: reason by position."""
    return {point.position: point.reason.value for point in plan.points}
