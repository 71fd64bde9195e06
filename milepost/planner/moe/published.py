"""What others have published, next to what the formulas give: nothing here is fitted to it.

The gains of waves and the two times of the tail are taken over as published figures; their original text was
not at hand to check under which batch and dtype they were measured.
"""

from __future__ import annotations

from milepost.planner.moe.plan import MoePlan
from milepost.planner.report import Table, columns

__all__ = ["PUBLISHED_GAINS", "PUBLISHED_TAIL_SECONDS", "tail_check"]

PUBLISHED_GAINS = (
    "Published (DeepSeek-V4 report): in theory 1.92x in waves, which takes r = 1 and 24 waves here, and "
    "1.42x for Comet, where these halves give 1.50x for r from 0.5 to 2; measured 1.50x to 1.73x, and up to "
    "1.96x."
)
PUBLISHED_TAIL_SECONDS = (13.200e-6, 10.620e-6)
"""Kimi K3's tail on 8 ranks, with all-reduces and scattered (vLLM)."""
_K3 = (7168, 3584)
_RANKS = 8
_TOKENS = (1, 8, 16)


def tail_check(plan: MoePlan) -> Table | None:
    """The published times of Kimi K3's tail beside the formulas'; None for other models."""
    known = {entry.name: entry.value for entry in plan.derivations}
    if (known["hidden_size"], known["expert_width"]) != _K3:
        return None
    before, after = PUBLISHED_TAIL_SECONDS
    rows = [("published", f"{before * 1e6:.2f}", f"{after * 1e6:.2f}", f"{after / before - 1:+.1%}")]
    for tail in plan.tails:
        if tail.ranks == _RANKS and tail.tokens in _TOKENS:
            seconds = {one.name: one.seconds for one in tail.tails}
            old, new = seconds["replicated"], seconds["scattered"]
            what = f"here, {tail.tokens} token{'s' if tail.tokens > 1 else ''}"
            rows.append((what, f"{old * 1e6:.2f}", f"{new * 1e6:.2f}", f"{new / old - 1:+.1%}"))
    return Table(
        title="Beside the published times on 8 ranks",
        columns=columns("", "replicated us", "scattered us", "change", words=("",)),
        rows=tuple(rows),
        note="Nothing is fitted to these times. Latencies of a collective and of a kernel are the hardware "
        "description's; launches that overlap the kernel before, and weights that are still in the L2 cache, "
        "are left out, so absolute times are high.",
    )
