"""One expert parallel degree: what a rank holds, sends, touches and takes, in decoding and in prefill."""

from __future__ import annotations

from typing import Literal, cast

import msgspec

from milepost.planner.moe.balance import LoadDraws
from milepost.planner.moe.exchange import note_links, ranks_reached
from milepost.planner.moe.question import MoeQuestion, Placement
from milepost.planner.moe.step import StepKind, note_step
from milepost.planner.moe.waves import WaveShape, note_overlap, note_waves
from milepost.planner.worksheet import Worksheet

__all__ = [
    "PHASES",
    "DegreePlan",
    "Phase",
    "PhaseAtDegree",
    "PlacementBalance",
    "note_degree",
    "note_placements",
]

Phase = Literal["decode", "prefill"]
PHASES: tuple[Phase, ...] = ("decode", "prefill")
AnyPlacement = Literal["even", "numbered", "balanced", "replicated"]
ANY_PLACEMENT: tuple[AnyPlacement, ...] = ("even", "numbered", "balanced", "replicated")


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


class PlacementBalance(msgspec.Struct, frozen=True, kw_only=True):
    """How uneven ranks are by placement, and what that costs.

    Attributes:
        ranks: expert parallel degree.
        phase: kind of step.
        placement: which experts lie where; "even" for ranks that are all as busy.
        max_over_mean: load of the busiest rank over the mean; its mean over drawn steps.
        serial_seconds: exchange and experts of a layer, one after the other.
    """

    ranks: int
    phase: Phase
    placement: AnyPlacement
    max_over_mean: float
    serial_seconds: float


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
    sheet: Worksheet, question: MoeQuestion, draws: LoadDraws, degree: int, all_ranks: int, kind: StepKind
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
    phases = tuple(_phase(sheet, question, draws, p, phase, all_ranks, kind) for phase in PHASES)
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
    all_ranks: int,
    kind: StepKind,
) -> PhaseAtDegree:
    p = f"{degree}.{phase}"
    placement = cast("Placement", question.placement)
    note_step(
        sheet, p, degree, phase, kind, draws.balance(placement, *_sizes(sheet, degree, phase)), placement
    )
    sheet.derive(
        f"{p}.touched_if_uniform",
        f"num_experts * (1 - (1 - top_k / num_experts) ** ({degree}.ranks * {p}.rank_tokens))",
        "experts",
        meaning="of one copy on all its ranks, for an even load",
    )
    sheet.derive(
        f"{p}.all_touched_bytes",
        f"{all_ranks} * {p}.touched_experts * expert_bytes",
        "bytes",
        meaning="on all ranks of the deployment",
    )
    waves = note_waves(sheet, p, f"{p}.rank_tokens", f"{degree}.experts")
    note_overlap(sheet, p)
    chosen = "waved" if question.overlap else "serial"
    rest = f"{phase}.{'tail_rest' if kind.shares_tokens(int(sheet[f'{degree}.ranks'])) else 'rest'}.seconds"
    sheet.derive(f"{p}.layer.seconds", f"{p}.{chosen}.seconds + {rest}", "seconds")
    return _taken(sheet, p, phase, waves, float(sheet[rest]))


def _sizes(sheet: Worksheet, degree: str, phase: Phase) -> tuple[int, float]:
    """Ranks of one copy of the experts, and tokens of all of them in a step."""
    ranks = int(sheet[f"{degree}.ranks"])
    return ranks, ranks * sheet[f"{phase}.tokens"] / sheet["tensor_parallel"]


def _taken(sheet: Worksheet, p: str, phase: Phase, waves: WaveShape, rest: float) -> PhaseAtDegree:
    """What stands on the sheet under the prefix `p`."""

    def value(name: str) -> float:
        return float(sheet[f"{p}.{name}"])

    def both(part: str) -> float:
        return value(f"dispatch.{part}") + value(f"combine.{part}")

    compute_bound = value("experts.compute_seconds") > value("experts.memory_seconds")
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
        experts_bound="compute" if compute_bound else "memory",
        exchange_ratio=value("exchange_ratio"),
        serial_seconds=value("serial.seconds"),
        halves_seconds=value("halves.seconds"),
        waved_seconds=value("waved.seconds"),
        waves=waves,
        rest_seconds=rest,
        layer_seconds=value("layer.seconds"),
    )


def note_placements(
    sheet: Worksheet, draws: LoadDraws, degree: int, kind: StepKind
) -> tuple[PlacementBalance, ...]:
    """Balance and time by placement, under ``balance.epN``; first of all as if ranks were even."""
    found = []
    for phase in PHASES:
        ranks, tokens = _sizes(sheet, f"ep{degree}", phase)
        for placement in ANY_PLACEMENT:
            balance = (
                draws.even(ranks, tokens) if placement == "even" else draws.balance(placement, ranks, tokens)
            )
            p = f"balance.ep{degree}.{phase}.{placement}"
            note_step(sheet, p, f"ep{degree}", phase, kind, balance, placement)
            found.append(
                PlacementBalance(
                    ranks=degree,
                    phase=phase,
                    placement=placement,
                    max_over_mean=balance.max_over_mean,
                    serial_seconds=float(sheet[f"{p}.serial.seconds"]),
                )
            )
    return tuple(found)
