"""What others have published, next to what the formulas give: nothing here is fitted to it."""

from __future__ import annotations

from milepost.planner.moe.plan import MoePlan
from milepost.planner.report import Column, Table

__all__ = ["PUBLISHED_GAINS", "PUBLISHED_TAIL_SECONDS", "tail_check"]

PUBLISHED_GAINS = (
    "Published over one after the other: 1.92x in waves and 1.42x by halves in theory (DeepSeek-V4 report), "
    "1.50x to 1.73x measured, up to 1.96x for small batches."
)
PUBLISHED_TAIL_SECONDS = (13.200e-6, 10.620e-6)
"""Kimi K3's tail on 8 ranks, with all-reduces and with the scattered form (vLLM)."""
_K3 = (7168, 3584)
_RANKS = 8
_TOKENS = (1, 8, 16)


def tail_check(plan: MoePlan) -> Table | None:
    """The published times of Kimi K3's tail beside the formulas'; None for other models."""
    known = {entry.name: entry.value for entry in plan.derivations}
    if (known["hidden"], known["expert_width"]) != _K3:
        return None
    before, after = PUBLISHED_TAIL_SECONDS
    rows = [("published", f"{before * 1e6:.2f}", f"{after * 1e6:.2f}", f"{after / before - 1:+.1%}")]
    for tail in plan.tails:
        if tail.ranks == _RANKS and tail.tokens in _TOKENS:
            seconds = {one.name: one.seconds for one in tail.tails}
            old, new = seconds["replicated"], seconds["scattered"]
            rows.append(
                (
                    f"here, {tail.tokens} tokens",
                    f"{old * 1e6:.2f}",
                    f"{new * 1e6:.2f}",
                    f"{new / old - 1:+.1%}",
                )
            )
    return Table(
        title="Beside the published times on 8 ranks",
        columns=(
            Column("", numeric=False),
            Column("replicated us"),
            Column("scattered us"),
            Column("change"),
        ),
        rows=tuple(rows),
        note="Nothing is fitted. The latencies of a collective and of a kernel are the hardware description's "
        "round numbers; launches that overlap the kernel before (programmatic dependent launch) and weights "
        "that wait in the L2 cache are left out, so absolute times are high.",
    )
