"""Routed experts of one layer on the busiest rank, and what is sent to them and back, in order."""

from __future__ import annotations

import msgspec

from milepost.planner.moe.balance import RankBalance
from milepost.planner.moe.exchange import note_exchange
from milepost.planner.worksheet import Worksheet

__all__ = ["StepKind", "note_step"]


class StepKind(msgspec.Struct, frozen=True, kw_only=True):
    """What is the same in all steps of a plan.

    Attributes:
        by_rank: tokens are sent once a rank, not once an expert.
        group: tensor-parallel ranks, which all have the tokens of their group. Where one group has a copy of
            the experts of its own, nothing is dispatched, and the group's tail adds results up.
        load: name of the experts' loads.
        seed: of the draws.
    """

    by_rank: bool
    group: int
    load: str
    seed: int

    def shares_tokens(self, ranks: int) -> bool:
        """Whether all of the `ranks` ranks that divide a copy of the experts have the same tokens."""
        return 1 < self.group == ranks


def note_step(
    sheet: Worksheet, p: str, degree: str, phase: str, kind: StepKind, balance: RankBalance, placement: str
) -> None:
    """Derive bytes and seconds of one layer under the prefix `p`.

    Args:
        sheet: with the facts, and what ``note_links`` and ``PHASE.tokens`` say.
        p: of the names.
        degree: prefix of what belongs to the degree, such as ``ep8``.
        phase: prefix of what belongs to the kind of step.
        kind: what is the same in all steps.
        balance: how uneven ranks are.
        placement: of the experts, for the source of `balance`.
    """
    sheet.derive(
        f"{p}.rank_tokens", f"{phase}.tokens / tensor_parallel", "tokens", meaning="that a rank brings"
    )
    sheet.derive(
        f"{p}.copies",
        f"{degree}.ranks_reached" if kind.by_rank else "top_k",
        "",
        meaning="times that a token is sent",
    )
    drawn = f"drawn (Monte Carlo, seed {kind.seed}): load {kind.load}, experts {placement}"
    sheet.given(
        f"{p}.max_over_mean", balance.max_over_mean, "", drawn, "load of the busiest rank over the mean"
    )
    sheet.given(
        f"{p}.touched_experts",
        balance.touched_experts,
        "experts",
        "sum over the experts of 1 - (1 - p)^tokens, over the ranks"
        + (", times drawn slots an expert" if placement == "replicated" else ""),
        "of a rank, in the mean",
    )
    sheet.given(f"{p}.busiest_touched_experts", balance.busiest_touched_experts, "experts", drawn)
    note_exchange(sheet, p, degree, shared_tokens=kind.shares_tokens(int(sheet[f"{degree}.ranks"])))
    _note_experts(sheet, p)
    sheet.derive(f"{p}.exchange.seconds", f"{p}.dispatch.seconds + {p}.combine.seconds", "seconds")
    sheet.derive(
        f"{p}.serial.seconds",
        f"{p}.experts.seconds + {p}.exchange.seconds",
        "seconds",
        meaning="one after the other",
    )


def _note_experts(sheet: Worksheet, p: str) -> None:
    """The busiest rank's roofline: weights touched, activations in and out, two products (or three)."""
    sheet.derive(f"{p}.pairs", f"{p}.max_over_mean * {p}.rank_tokens * top_k", "", meaning="token and expert")
    sheet.derive(f"{p}.experts.weight_bytes", f"{p}.busiest_touched_experts * expert_bytes", "bytes")
    sheet.derive(
        f"{p}.experts.bytes",
        f"{p}.experts.weight_bytes"
        f" + 4 * {p}.pairs * (expert_width + (expert_matrices - 1) * expert_intermediate)",
        "bytes",
        meaning="weights once, activations of two bytes written and read",
    )
    sheet.derive(f"{p}.experts.flops", f"2 * {p}.pairs * expert_parameters", "FLOP")
    sheet.derive(f"{p}.experts.compute_seconds", f"{p}.experts.flops / rate.experts", "seconds")
    sheet.derive(f"{p}.experts.memory_seconds", f"{p}.experts.bytes / rate.memory", "seconds")
    sheet.derive(
        f"{p}.experts.seconds", f"max({p}.experts.compute_seconds, {p}.experts.memory_seconds)", "seconds"
    )
