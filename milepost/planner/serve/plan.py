"""The plan of a serving deployment: one arrangement, or the best that a search finds, and all its figures."""

from __future__ import annotations

import msgspec

from milepost.errors import ConfigError
from milepost.planner.deployment import Deployment, check_ranks, check_types
from milepost.planner.device_memory import FreeMemory
from milepost.planner.serve.derive_plan import derive_plan, prefill_chunk
from milepost.planner.serve.question import ServeQuestion, check_question
from milepost.planner.serve.refusals import nothing_fits, out_of_reach
from milepost.planner.serve.request_memory import RequestMemory, fits, free_of, largest_batch, request_memory
from milepost.planner.serve.search import (
    DEFAULT_BUDGET,
    SearchResult,
    deployment_counts,
    divisions,
    replica_sizes,
    search,
)
from milepost.planner.serve.speculation import DRAFT_STATES, StateBytes
from milepost.planner.serve.steady import Arrangement, ServePoint
from milepost.planner.worksheet import Derivation, Worksheet
from milepost.shapes.names import find_shape
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.by_name import default_hardware
from milepost.sim.cost.hardware import Hardware, find_hardware
from milepost.sim.cost.part_work import RankSizes
from milepost.sim.cost.roofline import PartCost

__all__ = ["Costs", "DraftDesign", "ServePlan", "StepBreakdown", "plan_serve"]

MOST_GROUPS = 1 << 10


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """In the unit of the price. Prompts pay for the time that they add to steps, answers for the rest.

    Attributes:
        price_per_hour: of one device.
        cost_per_request: of one request.
        cost_per_million_input_tokens: tokens of prompts, cached ones included.
        cost_per_million_output_tokens: tokens of answers.
        cost_per_million_tokens: of both together.
    """

    price_per_hour: float
    cost_per_request: float
    cost_per_million_input_tokens: float
    cost_per_million_output_tokens: float
    cost_per_million_tokens: float


class DraftDesign(msgspec.Struct, frozen=True, kw_only=True):
    """What taking back drafts costs in one of the designs.

    Attributes:
        states: the design; see `milepost.planner.serve.speculation`.
        state: bytes of one sequence's state on a rank.
        step_extra_seconds: that a step takes longer for it at the chosen batch.
        largest_batch: sequences of a group that fit.
        tpot_seconds: at the chosen batch; None where prefill could not keep up.
    """

    states: str
    state: StateBytes
    step_extra_seconds: float
    largest_batch: int
    tpot_seconds: float | None


class StepBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of one step of decode at another batch or context.

    Attributes:
        batch: sequences of a group.
        context_tokens: of each.
        parts: of the step.
    """

    batch: int
    context_tokens: int
    parts: tuple[PartCost, ...]


class ServePlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan and all that it rests on.

    Attributes:
        question: what was asked.
        model: name of the model.
        hardware: name of the devices.
        point: one replica of the chosen arrangement in its steady state.
        replicas: that make up the fewest devices that were asked for.
        prefill_seconds: of one prompt on idle devices.
        prefill_steps: that it takes.
        decode_parts: of one step of decode.
        draft_seconds: that drafts add to it.
        prefill_parts: of one of the equal steps of a prompt on idle devices.
        by_context: steps of decode at the chosen batch, contexts from short to the longest.
        by_batch: steps of decode at the plan's mean context, batches from 1 to the largest.
        memory: of one device.
        request: memory of one request on one device.
        left_bytes: of one device, what this batch leaves for cached prefixes.
        largest_batch: sequences of a group that would fit.
        costs: None without a price.
        drafts: designs of states with drafts; empty without drafts.
        search: what was tried.
        notes: what a reader must know.
        derivations: of every number.
    """

    question: ServeQuestion
    model: str
    hardware: str
    point: ServePoint
    replicas: int
    prefill_seconds: float
    prefill_steps: int
    decode_parts: tuple[PartCost, ...]
    draft_seconds: float
    prefill_parts: tuple[PartCost, ...]
    by_context: tuple[StepBreakdown, ...]
    by_batch: tuple[StepBreakdown, ...]
    memory: FreeMemory
    request: RequestMemory
    left_bytes: float
    largest_batch: int
    costs: Costs | None
    drafts: tuple[DraftDesign, ...]
    search: SearchResult
    notes: tuple[str, ...]
    derivations: tuple[Derivation, ...]


def plan_serve(question: ServeQuestion) -> ServePlan:
    """Plan a deployment.

    Raises:
        ConfigError: an unknown model or hardware, ranks that can't divide the model, a model that does not
            fit (with the fewest devices that hold it), limits out of reach (with what can be reached).
        CheckpointError: the config.json can't be read.
    """
    check_types(question)
    name, shape = find_shape(question.deployment.model)
    hardware = find_hardware(question.deployment.hardware or default_hardware(shape))
    check_question(question, shape.max_position)
    if question.gpus is None and not question.token_budget:
        question = msgspec.structs.replace(question, token_budget=DEFAULT_BUDGET)
    _check_budget(question)
    candidates = _candidates(shape, hardware, question)
    counts = deployment_counts(*question.gpus) if question.gpus else (candidates[0].ranks,)
    found = search(shape, hardware, question, candidates, counts)
    if not found.refusals.considered or found.fastest_token is None:
        raise ConfigError(nothing_fits(shape, hardware, question, candidates, found.refusals))
    point = _given_batch(shape, hardware, question, candidates[0]) if question.batch else found.best
    if point is None:
        raise ConfigError(out_of_reach(hardware, question, found))
    return _filled(
        name, Arrangement(shape, hardware, _sizes_of(point, candidates), question), question, point, found
    )


def _sizes_of(point: ServePoint, candidates: list[RankSizes]) -> RankSizes:
    """The division that a point belongs to."""
    for sizes in candidates:
        if (sizes.tensor_parallel, sizes.data_parallel, sizes.expert_ranks, sizes.context_parallel) == (
            point.tensor_parallel,
            point.data_parallel,
            point.expert_parallel,
            point.context_parallel,
        ):
            return sizes
    raise AssertionError("a point is of one of the candidates")


def _check_budget(question: ServeQuestion) -> None:
    verified = question.speculation.verified if question.speculation else 1
    least = max(1, question.batch) * verified + 1
    if question.token_budget and question.token_budget < least:
        raise ConfigError(
            f"token_budget must be at least {least:,}: {max(1, question.batch):,} x {verified} tokens of "
            f"decode and one of a prompt. Given: {question.token_budget:,}."
        )


def _candidates(shape: ModelShape, hardware: Hardware, question: ServeQuestion) -> list[RankSizes]:
    """The divisions to be tried: those of a search, or the deployment's one."""
    deployment = question.deployment
    items = (deployment.kv_itemsize, deployment.state_itemsize)
    if question.gpus is not None:
        if question.batch:
            raise ConfigError("A search chooses the batch. Given: a batch and gpus. Leave out one of them.")
        replicas = replica_sizes(deployment_counts(*question.gpus))
        found = [one for ranks in replicas for one in divisions(shape, ranks, items)]
        return [one for one in found if _as_asked(deployment, one)]
    check_ranks(shape, deployment)
    groups = deployment.data_parallel or 1
    most = MOST_GROUPS
    if shape.experts is not None and not deployment.expert_parallel:  # an expert on each rank at least
        most = min(most, max(1, shape.experts.num_experts // deployment.tensor_parallel))
    while True:
        sizes = RankSizes(
            tensor_parallel=deployment.tensor_parallel,
            data_parallel=groups,
            expert_parallel=deployment.expert_parallel,
            context_parallel=deployment.context_parallel,
            kv_itemsize=items[0],
            state_itemsize=items[1],
        )
        if deployment.data_parallel or _holds(shape, hardware, question, sizes) or 2 * groups > most:
            break
        groups *= 2
    check_ranks(shape, msgspec.structs.replace(deployment, data_parallel=groups))
    return [sizes]


def _as_asked(deployment: Deployment, sizes: RankSizes) -> bool:
    """Whether a division keeps the ranks that are given; defaults leave them to the search."""
    return (
        deployment.tensor_parallel in (1, sizes.tensor_parallel)
        and deployment.data_parallel in (0, sizes.data_parallel)
        and deployment.expert_parallel in (0, sizes.expert_ranks)
        and deployment.context_parallel in (1, sizes.context_parallel)
    )


def _holds(shape: ModelShape, hardware: Hardware, question: ServeQuestion, sizes: RankSizes) -> bool:
    if sizes.expert_parallel > sizes.ranks:
        return False
    return largest_batch(Arrangement(shape, hardware, sizes, question), question, question.token_budget) >= 1


def _given_batch(
    shape: ModelShape, hardware: Hardware, question: ServeQuestion, sizes: RankSizes
) -> ServePoint:
    arrangement = Arrangement(shape, hardware, sizes, question)
    if not fits(arrangement, question, question.token_budget, question.batch):
        most = largest_batch(arrangement, question, question.token_budget)
        raise ConfigError(f"batch must be at most {most:,} here, by memory. Given: {question.batch:,}.")
    point = arrangement.point(question.batch, question.token_budget)
    if point is None:
        begun = question.batch * arrangement.accepted * question.new_tokens / question.output_tokens
        raise ConfigError(
            f"Prefill must keep up with decode: {question.batch:,} sequences need {begun:,.0f} tokens of "
            f"prompts a step. Given: a token budget of {question.token_budget:,}. Raise it or lower the "
            "batch."
        )
    return point


def _filled(
    name: str, arrangement: Arrangement, question: ServeQuestion, point: ServePoint, found: SearchResult
) -> ServePlan:
    sheet = Worksheet()
    derive_plan(sheet, arrangement, question, point)
    budget = point.token_budget_tokens
    most = largest_batch(arrangement, question, budget)
    return ServePlan(
        question=question,
        model=name,
        hardware=arrangement.hardware.name,
        point=point,
        replicas=next((one.replicas for one in found.by_count if one.gpus % point.gpus == 0), 1),
        prefill_seconds=arrangement.prefill_seconds(budget),
        prefill_steps=int(sheet["prefill.steps"]),
        decode_parts=arrangement.cost.breakdown(arrangement.decode_work(point.batch)),
        draft_seconds=arrangement.draft_seconds(point.batch),
        prefill_parts=arrangement.cost.breakdown(arrangement.prefill_work(prefill_chunk(question, point))),
        by_context=_over(arrangement, [point.batch], _contexts(arrangement.shape.max_position)),
        by_batch=_over(arrangement, _batches(max(most, point.batch)), [arrangement.mean_context]),
        memory=free_of(arrangement, question, budget, point.batch),
        request=request_memory(arrangement, question),
        left_bytes=float(sheet["left_bytes"]),
        largest_batch=most,
        costs=_costs(sheet, question),
        drafts=_designs(arrangement, question, point),
        search=found,
        notes=_notes(question, point),
        derivations=sheet.derivations,
    )


def _over(arrangement: Arrangement, batches: list[int], contexts: list[int]) -> tuple[StepBreakdown, ...]:
    return tuple(
        StepBreakdown(
            batch=batch,
            context_tokens=context,
            parts=arrangement.cost.breakdown(arrangement.decode_work(batch, context)),
        )
        for batch in batches
        for context in contexts
    )


def _contexts(most: int) -> list[int]:
    """Powers of four from 1,024, and the longest."""
    return sorted({min(most, 1 << n) for n in range(10, 21, 2)} | {most})


def _batches(most: int) -> list[int]:
    """Powers of two, and the largest."""
    return sorted({1 << n for n in range(most.bit_length())} | {most})


def _costs(sheet: Worksheet, question: ServeQuestion) -> Costs | None:
    if question.price_per_hour is None:
        return None
    return Costs(**{name: float(sheet[name]) for name in Costs.__struct_fields__})


def _designs(arrangement: Arrangement, question: ServeQuestion, point: ServePoint) -> tuple[DraftDesign, ...]:
    """The chosen arrangement with each way to take back drafts."""
    spec = question.speculation
    if spec is None or not arrangement.shape.recurrent_layers:
        return ()
    designs = []
    for states in DRAFT_STATES:
        asked = msgspec.structs.replace(question, speculation=msgspec.structs.replace(spec, states=states))
        other = Arrangement(arrangement.shape, arrangement.hardware, arrangement.sizes, asked)
        at = other.point(point.batch, point.token_budget_tokens)
        designs.append(
            DraftDesign(
                states=states,
                state=other.states,
                step_extra_seconds=other.draft_seconds(point.batch) - other.draft_model_seconds(point.batch),
                largest_batch=largest_batch(other, asked, point.token_budget_tokens),
                tpot_seconds=at.tpot_seconds if at else None,
            )
        )
    return tuple(designs)


def _notes(question: ServeQuestion, point: ServePoint) -> tuple[str, ...]:
    notes = [*question.notes, _ROOFLINE, _MIXING, _MEMORY]
    if question.speculation is not None:
        notes.append("The draft model's work on prompts is not counted.")
    limits = (
        ("TTFT", question.ttft_limit_seconds, point.ttft_seconds),
        ("TPOT", question.tpot_limit_seconds, point.tpot_seconds),
    )
    notes += [
        f"{name} is {value:.3g} s, above the limit of {limit:g} s."
        for name, limit, value in limits
        if limit is not None and value > limit
    ]
    if question.gpus and question.ttft_limit_seconds is None and question.tpot_limit_seconds is None:
        notes.append(_NO_LIMITS)
    if point.mixed_share and point.mixed_step_seconds > STALL_STEPS * point.mean_step_seconds:
        notes.append(
            f"TPOT is a mean. {point.mixed_share:.1%} of the steps compute prompts and take "
            f"{point.mixed_step_seconds:.3g} s, in which all answers stand still. A smaller --token-budget "
            "makes that shorter."
        )
    return tuple(notes)


STALL_STEPS = 5.0
"""Mean steps; a step with prompts that is longer is noted, as it is seen in a stream of tokens."""


_ROOFLINE = (
    "Times are rooflines with the efficiencies of the hardware's description; docs/cost-model.md says how "
    "far they are from published speeds."
)
_MIXING = (
    "Prefill and decode share the devices; all groups of ranks take a chunk of prompts in the same steps. "
    "Prompts arrive at random; TTFT is a mean, waiting included."
)
_NO_LIMITS = (
    "No limits are given, so the division of most tokens/s/GPU is chosen, however late its tokens come. "
    "Give --ttft and --tpot, such as --ttft 2 --tpot 50ms."
)
_MEMORY = "Memory is given to each request for its whole length. Cached prefixes need memory of their own."
