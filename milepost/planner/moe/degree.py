"""One expert parallel degree: what a rank holds, sends, touches and takes, in decoding and in prefill."""

from __future__ import annotations

from typing import Literal

import msgspec

from milepost.planner.moe.balance import LoadDraws
from milepost.planner.moe.exchange import note_exchange, note_links, ranks_reached
from milepost.planner.moe.question import MoeQuestion, Placement
from milepost.planner.moe.waves import WaveShape, note_overlap, note_waves
from milepost.planner.worksheet import Worksheet

__all__ = ["DegreePlan", "Phase", "PhaseAtDegree", "note_degree"]

Phase = Literal["decode", "prefill"]
PHASES: tuple[Phase, ...] = ("decode", "prefill")


class PhaseAtDegree(msgspec.Struct, frozen=True, kw_only=True):
    """One layer in one kind of step at one degree; bytes and experts are of one rank.

    Attributes:
        phase: kind of step.
        rank_tokens: tokens that a rank brings.
        max_over_mean: load of the busiest rank over the mean.
        touched_experts: in the mean of the ranks.
        busiest_touched_experts: of the rank that touches most.
        touched_bytes: of experts on that rank.
        all_touched_bytes: of experts on all ranks of the deployment.
        dispatch_bytes: sent to experts.
        combine_bytes: sent back.
        stay_bytes: of both, what stays on the rank.
        domain_bytes: what goes to others of its domain.
        cross_bytes: what leaves the domain.
        exchange_seconds: dispatch and combine.
        experts_seconds: of the busiest rank.
        experts_bound: what decides that, "compute" or "memory".
        exchange_ratio: r, `exchange_seconds` over `experts_seconds`.
        serial_seconds: both, one after the other.
        halves_seconds: overlapped as Comet does.
        waved_seconds: overlapped in waves.
        waves: how experts are grouped.
        rest_seconds: router, latent projections, shared experts, sums over tensor-parallel ranks.
        layer_seconds: of the layer, with waves if the question asks for overlap.
    """

    phase: Phase
    rank_tokens: float
    max_over_mean: float
    touched_experts: float
    busiest_touched_experts: float
    touched_bytes: float
    all_touched_bytes: float
    dispatch_bytes: float
    combine_bytes: float
    stay_bytes: float
    domain_bytes: float
    cross_bytes: float
    exchange_seconds: float
    experts_seconds: float
    experts_bound: str
    exchange_ratio: float
    serial_seconds: float
    halves_seconds: float
    waved_seconds: float
    waves: WaveShape
    rest_seconds: float
    layer_seconds: float


class DegreePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One expert parallel degree.

    Attributes:
        ranks: among which one copy of the experts is divided.
        copies: of the experts in the deployment.
        experts_per_rank: of the rank that holds most, replicas included.
        even: whether every rank holds as many different experts.
        expert_weight_bytes: of a rank, all layers.
        weight_bytes: with everything else.
        free_bytes: left for states, KV and activations; below 0 where weights don't fit.
        fits: whether weights do.
        ranks_reached: of a token's experts, in the mean.
        phases: decoding and prefill.
    """

    ranks: int
    copies: int
    experts_per_rank: int
    even: bool
    expert_weight_bytes: float
    weight_bytes: float
    free_bytes: float
    fits: bool
    ranks_reached: float
    phases: tuple[PhaseAtDegree, ...]

    def at(self, phase: Phase) -> PhaseAtDegree:
        """The layer in one kind of step."""
        return next(one for one in self.phases if one.phase == phase)


def note_degree(
    sheet: Worksheet,
    question: MoeQuestion,
    draws: LoadDraws,
    degree: int,
    all_ranks: int,
    *,
    shared_tokens: bool,
) -> DegreePlan:
    """Derive everything of one degree, under the prefix ``epN``."""
    p = f"ep{degree}"
    note_links(sheet, p, degree)
    redundant = question.redundant_per_rank if question.placement == "replicated" else 0
    sheet.given(f"{p}.redundant", redundant, "experts", "--redundant-per-rank, where experts are replicated")
    sheet.derive(
        f"{p}.experts", f"ceil(num_experts / {p}.ranks) + {p}.redundant", "experts", meaning="of a rank"
    )
    sheet.derive(f"{p}.expert_weight_bytes", f"moe_layers * {p}.experts * expert_bytes", "bytes")
    sheet.derive(f"{p}.weight_bytes", f"rank.other_bytes + {p}.expert_weight_bytes", "bytes")
    sheet.derive(f"{p}.free_bytes", f"usable_bytes - {p}.weight_bytes - workspace_bytes", "bytes")
    num_experts, top_k = int(sheet["num_experts"]), int(sheet["top_k"])
    sheet.given(
        f"{p}.ranks_reached",
        ranks_reached(num_experts, top_k, degree),
        "ranks",
        "r (1 - C(N - N/r, k) / C(N, k)): the chance that none of k distinct experts lies on a rank",
        "that hold some of a token's experts",
    )
    phases = tuple(
        _phase(sheet, question, draws, p, phase, degree, all_ranks, shared_tokens=shared_tokens)
        for phase in PHASES
    )
    return DegreePlan(
        ranks=degree,
        copies=all_ranks // degree,
        experts_per_rank=int(sheet[f"{p}.experts"]),
        even=num_experts % degree == 0,
        expert_weight_bytes=float(sheet[f"{p}.expert_weight_bytes"]),
        weight_bytes=float(sheet[f"{p}.weight_bytes"]),
        free_bytes=float(sheet[f"{p}.free_bytes"]),
        fits=sheet[f"{p}.free_bytes"] >= 0,
        ranks_reached=float(sheet[f"{p}.ranks_reached"]),
        phases=phases,
    )


def _phase(
    sheet: Worksheet,
    question: MoeQuestion,
    draws: LoadDraws,
    degree: str,
    phase: Phase,
    ranks: int,
    all_ranks: int,
    *,
    shared_tokens: bool,
) -> PhaseAtDegree:
    p = f"{degree}.{phase}"
    sheet.derive(
        f"{p}.rank_tokens", f"{phase}.tokens / tensor_parallel", "tokens", meaning="that a rank brings"
    )
    sheet.derive(
        f"{p}.copy_tokens", f"{degree}.ranks * {p}.rank_tokens", "tokens", meaning="of one copy's ranks"
    )
    sheet.derive(
        f"{p}.copies",
        "top_k" if question.send == "pairs" else f"{degree}.ranks_reached",
        "",
        meaning="times that a token is sent",
    )
    _note_balance(sheet, question, draws, p, ranks)
    note_exchange(sheet, p, degree, shared_tokens=shared_tokens)
    _note_experts(sheet, p, all_ranks)
    waves = note_waves(sheet, p, f"{p}.rank_tokens", f"{degree}.experts")
    note_overlap(sheet, p)
    chosen = "waved" if question.overlap else "serial"
    sheet.derive(f"{p}.layer.seconds", f"{p}.{chosen}.seconds + {phase}.rest.seconds", "seconds")

    def value(name: str) -> float:
        return float(sheet[f"{p}.{name}"])

    def both(part: str) -> float:
        return value(f"dispatch.{part}") + value(f"combine.{part}")

    return PhaseAtDegree(
        phase=phase,
        rank_tokens=value("rank_tokens"),
        max_over_mean=value("max_over_mean"),
        touched_experts=value("touched_experts"),
        busiest_touched_experts=value("busiest_touched_experts"),
        touched_bytes=value("experts.weight_bytes"),
        all_touched_bytes=value("all_touched_bytes"),
        dispatch_bytes=value("dispatch.bytes"),
        combine_bytes=value("combine.bytes"),
        stay_bytes=both("stay_bytes"),
        domain_bytes=both("domain_bytes"),
        cross_bytes=both("cross_bytes"),
        exchange_seconds=value("exchange.seconds"),
        experts_seconds=value("experts.seconds"),
        experts_bound="compute"
        if value("experts.compute_seconds") > value("experts.memory_seconds")
        else "memory",
        exchange_ratio=value("exchange_ratio"),
        serial_seconds=value("serial.seconds"),
        halves_seconds=value("halves.seconds"),
        waved_seconds=value("waved.seconds"),
        waves=waves,
        rest_seconds=float(sheet[f"{phase}.rest.seconds"]),
        layer_seconds=value("layer.seconds"),
    )


def _note_balance(sheet: Worksheet, question: MoeQuestion, draws: LoadDraws, p: str, ranks: int) -> None:
    placement: Placement = question.placement  # type: ignore[assignment]  # checked with the question
    found = draws.balance(placement, ranks, float(sheet[f"{p}.copy_tokens"]))
    drawn = f"drawn (Monte Carlo, seed {question.seed}): load {question.load}, experts {placement}"
    sheet.given(
        f"{p}.max_over_mean", found.max_over_mean, "", drawn, "load of the busiest rank over the mean"
    )
    sheet.given(f"{p}.touched_experts", found.touched_experts, "experts", "sum of 1 - (1 - p)^tokens, a rank")
    sheet.given(f"{p}.busiest_touched_experts", found.busiest_touched_experts, "experts", drawn)
    sheet.derive(
        f"{p}.touched_if_uniform",
        f"num_experts * (1 - (1 - top_k / num_experts) ** {p}.copy_tokens)",
        "experts",
        meaning="of one copy on all its ranks, for an even load",
    )


def _note_experts(sheet: Worksheet, p: str, all_ranks: int) -> None:
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
    sheet.derive(
        f"{p}.all_touched_bytes",
        f"{all_ranks} * {p}.touched_experts * expert_bytes",
        "bytes",
        meaning="on all ranks of the deployment",
    )
