"""A plan of expert parallelism: bytes, balance, waves and time of every degree, tails, the best degree."""

from __future__ import annotations

import msgspec

from milepost.errors import ConfigError
from milepost.planner.deployment import check_ranks, check_types
from milepost.planner.moe.balance import MOST_LAYERS, LoadDraws
from milepost.planner.moe.crossings import TailRange, tail_ranges
from milepost.planner.moe.degree import (
    PHASES,
    DegreePlan,
    Phase,
    PlacementBalance,
    note_degree,
    note_placements,
)
from milepost.planner.moe.exchange import note_token_bytes
from milepost.planner.moe.facts import DEFAULT_SMS, can_multicast, experts_of, note_facts
from milepost.planner.moe.loads import ExpertLoads, read_loads
from milepost.planner.moe.memory import degrees_of, note_memory, resolve_ranks
from milepost.planner.moe.question import MoeQuestion, check_question
from milepost.planner.moe.rest import note_rest, note_rest_facts
from milepost.planner.moe.step import StepKind
from milepost.planner.moe.tails import TailTimes, note_tail_facts, note_tails
from milepost.planner.moe.waves import WaveShape, note_waves
from milepost.planner.worksheet import Derivation, Worksheet
from milepost.shapes.names import find_shape
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.by_name import default_hardware
from milepost.sim.cost.hardware import Hardware, find_hardware

__all__ = ["MoePlan", "WavePoint", "plan_moe"]

TAIL_RANKS = (2, 4, 8, 16)
TAIL_TOKENS = tuple(1 << power for power in range(14))
WAVE_TOKENS = (1, 8, 32, 128, 512, 2048, 8192)


class WavePoint(msgspec.Struct, frozen=True, kw_only=True):
    """Waves at `ranks` ranks for `rank_tokens` tokens of each."""

    ranks: int
    rank_tokens: int
    shape: WaveShape


class MoePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a plan of expert parallelism finds.

    Attributes:
        model: its name.
        hardware: name of the device.
        ranks: of the deployment.
        tensor_parallel: ranks of a group.
        data_parallel: groups.
        load: of the experts, by name.
        placement: which experts lie on which rank, in the times of degrees.
        num_experts: of a layer.
        top_k: experts of a token.
        moe_layers: layers with experts.
        expert_bytes: of one expert.
        token_layer_bytes: dispatched and combined for a token in a layer, at the experts' width.
        token_layer_bytes_at_hidden: the same at the hidden size.
        latent_saving: hidden size over the experts' width.
        balance_flops_per_byte: below it communication hides behind computing.
        device_flops_per_byte: of the device and the links of its domain.
        scale_out_flops_per_byte: of the device and the links beyond.
        degrees: every expert parallel degree.
        best_decode: degree whose decoding is the quickest of those that fit; the given one, if any.
        best_prefill: the same of prefill.
        balance: by degree that fits, kind of step and placement.
        waves: by degree and tokens.
        multicast: whether devices can store to all others at once, which the "scattered" tail needs.
        tails: by tensor parallel degree and tokens; () without a latent.
        tail_ranges: tokens for which each tail is the quickest.
        derivations: of every number.
        notes: assumptions, and what is left out.
    """

    model: str
    hardware: str
    ranks: int
    tensor_parallel: int
    data_parallel: int
    load: str
    placement: str
    num_experts: int
    top_k: int
    moe_layers: int
    expert_bytes: float
    token_layer_bytes: float
    token_layer_bytes_at_hidden: float
    latent_saving: float
    balance_flops_per_byte: float
    device_flops_per_byte: float
    scale_out_flops_per_byte: float
    degrees: tuple[DegreePlan, ...]
    best_decode: int
    best_prefill: int
    balance: tuple[PlacementBalance, ...]
    waves: tuple[WavePoint, ...]
    multicast: bool
    tails: tuple[TailTimes, ...]
    tail_ranges: tuple[TailRange, ...]
    derivations: tuple[Derivation, ...]
    notes: tuple[str, ...]

    def best(self, phase: Phase) -> int:
        """The degree that is recommended for one kind of step."""
        return self.best_decode if phase == "decode" else self.best_prefill

    def degree(self, ranks: int) -> DegreePlan:
        """The plan of one degree."""
        return next(one for one in self.degrees if one.ranks == ranks)


def plan_moe(question: MoeQuestion) -> MoePlan:
    """Plan expert parallelism.

    Raises:
        ConfigError: an option that can't be, a model without experts, ranks that can't divide it or hold it.
        CheckpointError: the model's config.json can't be read.
    """
    check_types(question)
    check_question(question)
    name, shape = find_shape(question.deployment.model)
    experts = experts_of(name, shape)
    check_ranks(shape, question.deployment)
    hardware = find_hardware(question.deployment.hardware or default_hardware(shape))
    loads = read_loads(question.load, experts.num_experts, shape.moe_layers)
    ranks = resolve_ranks(name, shape, hardware, question)
    group, multicast = question.deployment.tensor_parallel, can_multicast(hardware, question)
    numbers = degrees_of(ranks, group, experts.num_experts)
    _check_degree(question.deployment.expert_parallel, ranks, group, numbers)
    sheet = Worksheet()
    note_facts(sheet, name, shape, hardware, question)
    note_token_bytes(sheet)
    note_memory(sheet, shape, hardware, question, ranks)
    note_rest_facts(sheet, name, experts, group)
    for phase, tokens in zip(PHASES, (question.decode_tokens, question.prefill_tokens), strict=True):
        note_rest(sheet, experts, phase, tokens, f"--{phase}-tokens", multicast=multicast)
    draws = LoadDraws(loads, experts.top_k, question.redundant_per_rank, question.seed)
    kind = StepKind(by_rank=question.send == "ranks", group=group, load=loads.name, seed=question.seed)
    degrees = tuple(note_degree(sheet, question, draws, degree, ranks, kind) for degree in numbers)
    tails = _tails(sheet, shape, group)
    return MoePlan(
        model=name,
        hardware=hardware.name,
        ranks=ranks,
        tensor_parallel=group,
        data_parallel=ranks // group,
        load=loads.name,
        placement=question.placement,
        num_experts=experts.num_experts,
        top_k=experts.top_k,
        moe_layers=shape.moe_layers,
        expert_bytes=float(sheet["expert_bytes"]),
        token_layer_bytes=float(sheet["token_layer_bytes"]),
        token_layer_bytes_at_hidden=float(sheet["token_layer_bytes_at_hidden"]),
        latent_saving=float(sheet["latent_saving"]),
        balance_flops_per_byte=float(sheet["balance_point"]),
        device_flops_per_byte=float(sheet["device.balance"]),
        scale_out_flops_per_byte=float(sheet["device.scale_out_balance"]),
        degrees=degrees,
        best_decode=_best(degrees, "decode", question.deployment.expert_parallel),
        best_prefill=_best(degrees, "prefill", question.deployment.expert_parallel),
        balance=tuple(
            one
            for degree in degrees
            if degree.fits
            for one in note_placements(sheet, draws, degree.ranks, kind)
        ),
        waves=_waves(sheet, degrees),
        multicast=multicast,
        tails=tails,
        tail_ranges=_ranges(sheet, tails),
        derivations=sheet.derivations,
        notes=_notes(question, hardware, loads, ranks),
    )


def _check_degree(given: int, ranks: int, group: int, degrees: tuple[int, ...]) -> None:
    if given and given not in degrees:
        near = min(degrees, key=lambda degree: abs(degree - given))
        whole = f", be a multiple of tensor_parallel {group}" if group > 1 else ""
        raise ConfigError(
            f"expert_parallel must divide the {ranks} ranks{whole} and leave each an expert. Given: {given}. "
            f"The nearest that does: {near}."
        )


def _best(degrees: tuple[DegreePlan, ...], phase: Phase, given: int) -> int:
    """The quickest degree that fits, of those that divide the experts where there are any.

    Raises:
        ConfigError: the weights fit at no degree, or not at the given one.
    """
    fitting = [degree for degree in degrees if degree.fits]
    if not fitting or (given and given not in {degree.ranks for degree in fitting}):
        short = next((one for one in degrees if one.ranks == given), degrees[-1])
        hint = f"The fewest that do: {fitting[0].ranks}." if fitting else "No degree does: use more ranks."
        raise ConfigError(
            f"The weights must fit into a rank's memory. Given: expert_parallel {short.ranks}, where each "
            f"holds {short.experts_per_rank} experts a layer, {-short.free_bytes:,.0f} bytes too many. {hint}"
        )
    if given:
        return given
    even = [degree for degree in fitting if degree.even]
    return min(even or fitting, key=lambda degree: degree.at(phase).layer_seconds).ranks


def _waves(sheet: Worksheet, degrees: tuple[DegreePlan, ...]) -> tuple[WavePoint, ...]:
    found = []
    for tokens in WAVE_TOKENS:
        sheet.given(f"waves.m{tokens}.tokens", tokens, "tokens", "of a rank")
        for degree in degrees:
            name = f"ep{degree.ranks}"
            shape = note_waves(sheet, f"waves.m{tokens}.{name}", f"waves.m{tokens}.tokens", f"{name}.experts")
            found.append(WavePoint(ranks=degree.ranks, rank_tokens=tokens, shape=shape))
    return tuple(found)


def _tails(sheet: Worksheet, shape: ModelShape, group: int) -> tuple[TailTimes, ...]:
    """The three tails by tensor parallel degrees that divide the hidden size, and by tokens."""
    if shape.experts is None or not shape.experts.latent:
        return ()
    found = []
    for ranks in sorted({*TAIL_RANKS, group} - {1}):
        if shape.hidden_size % ranks:
            continue
        name = f"tails.tp{ranks}"
        note_tail_facts(sheet, name, ranks)
        found += [note_tails(sheet, name, f"{name}.m{tokens}", tokens) for tokens in TAIL_TOKENS]
    return tuple(found)


def _ranges(sheet: Worksheet, tails: tuple[TailTimes, ...]) -> tuple[TailRange, ...]:
    return tuple(
        one
        for multicast in (True, False)
        for ranks in dict.fromkeys(tail.ranks for tail in tails)
        for one in tail_ranges(
            sheet, tuple(tail for tail in tails if tail.ranks == ranks), multicast=multicast
        )
    )


def _notes(
    question: MoeQuestion,
    hardware: Hardware,
    loads: ExpertLoads,
    ranks: int,
) -> tuple[str, ...]:
    notes = [
        (
            "Times are a roofline with the assumed efficiencies of the hardware's description. Launches of "
            "kernels are left out but for the tails': they are the same at every degree."
        ),
        (
            "Experts are taken to lie evenly over domains; both kinds of links are used at once. Expert "
            "weights are read once a step from the busiest rank's memory."
        ),
    ]
    if loads.uniform:
        notes.append(
            "Every expert is taken to be chosen equally often. Real routers are uneven: give counts with "
            "--load, or try --load 'zipf(0.5)'."
        )
    if len(loads.layers) > 1:
        notes.append(
            f"Loads are those of {min(MOST_LAYERS, len(loads.layers))} layers, evenly spread over the "
            f"{len(loads.layers)} of the file; figures are their means."
        )
    if (group := question.deployment.tensor_parallel) > 1:
        notes.append(
            f"At EP {group} all ranks of a copy of the experts have the same tokens (tensor_parallel), "
            "so nothing is dispatched: each computes its own experts, and the quickest tail adds results up."
        )
    if not question.sms and hardware.compute_units is None:
        notes.append(
            f"Wave counts are for {DEFAULT_SMS} SMs, those of a B200: the hardware doesn't say. See --sms."
        )
    if ranks > hardware.domain_devices:
        notes.append(f"Degrees above {hardware.domain_devices} leave the domain of {hardware.name}.")
    return tuple(notes)
