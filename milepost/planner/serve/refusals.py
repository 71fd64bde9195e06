"""What to say when nothing can be planned: what is missing, and the nearest that would do."""

from __future__ import annotations

from milepost.planner.figures import bytes_text
from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.request_memory import free_of, largest_batch, request_memory
from milepost.planner.serve.search import BUDGETS, Refusals, SearchResult, divisions
from milepost.planner.serve.steady import Arrangement, ServePoint
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.hardware import Hardware
from milepost.sim.cost.parallel import division_text
from milepost.sim.cost.part_work import RankSizes

__all__ = ["arrangement_text", "fewest_that_hold", "nothing_fits", "out_of_reach"]

MOST_DEVICES = 1 << 12


def arrangement_text(sizes: RankSizes | ServePoint) -> str:
    """Such as "TP8 x DP4"; expert and context parallelism where they are not the plain ones."""
    text = division_text(sizes.tensor_parallel, sizes.data_parallel)
    experts = sizes.expert_parallel
    if experts and experts != sizes.tensor_parallel * sizes.data_parallel:
        text += f" EP{experts}"
    return f"{text} CP{sizes.context_parallel}" if sizes.context_parallel > 1 else text


def fewest_that_hold(
    shape: ModelShape, hardware: Hardware, question: ServeQuestion, items: tuple[int, int]
) -> RankSizes | None:
    """The fewest devices, in powers of two, that hold the weights and a request; None where 4,096 don't."""
    budget = question.token_budget or min(BUDGETS)
    ranks = 1
    while ranks <= MOST_DEVICES:
        rooms = {
            sizes: sizes.data_parallel
            * largest_batch(Arrangement(shape, hardware, sizes, question), question, budget)
            for sizes in divisions(shape, ranks, items)
        }
        # A context that need not be divided is the simpler advice, even where there is less room.
        holding = sorted((sizes for sizes in rooms if rooms[sizes]), key=lambda one: one.context_parallel)
        if holding:
            plainest = [one for one in holding if one.context_parallel == holding[0].context_parallel]
            return max(plainest, key=lambda one: rooms[one])
        ranks *= 2
    return None


def nothing_fits(
    shape: ModelShape,
    hardware: Hardware,
    question: ServeQuestion,
    candidates: list[RankSizes],
    refusals: Refusals,
) -> str:
    """The line for a search that found no steady state at all.

    Args:
        shape: the model.
        hardware: the devices.
        question: the requests.
        candidates: what was tried.
        refusals: why it was left out.
    """
    budget = question.token_budget or min(BUDGETS)
    if refusals.considered > refusals.memory:
        return (
            f"Prefill must keep up with decode. Given: {question.new_tokens:,} new tokens of a prompt for "
            f"{question.output_tokens:,} of output, with steps of at most {budget:,} tokens. Raise the token "
            "budget."
        )
    if not candidates:
        return (
            "A search needs a division of its devices that the model's heads and the given ranks allow. "
            f"Given: {question.gpus}, and none. Give another number, or fewer ranks."
        )
    sizes = max(candidates, key=lambda one: _left(shape, hardware, question, one, budget))
    items = (sizes.kv_itemsize, sizes.state_itemsize)
    arrangement = Arrangement(shape, hardware, sizes, question)
    needed = request_memory(arrangement, question)
    free = free_of(arrangement, question, budget, 1)
    fewest = fewest_that_hold(shape, hardware, question, items)
    hint = (
        f"The fewest {hardware.name} that do: {fewest.ranks} ({arrangement_text(fewest)})."
        if fewest
        else f"Not even {MOST_DEVICES:,} {hardware.name} do: shorten the requests, lower the token "
        "budget or take larger devices."
    )
    held = (
        f"{bytes_text(free.usable_bytes)} for {bytes_text(free.weight_bytes)} of weights, "
        f"{bytes_text(free.workspace_bytes)} of workspace and {bytes_text(needed.request_bytes)} a request"
    )
    return (
        "A device must hold its weights, a step's workspace and two requests, one that decodes and one that "
        f"begins. Given: {hardware.name} at {arrangement_text(sizes)} with {held}. {hint}"
    )


def _left(
    shape: ModelShape, hardware: Hardware, question: ServeQuestion, sizes: RankSizes, budget: int
) -> float:
    arrangement = Arrangement(shape, hardware, sizes, question)
    return (
        free_of(arrangement, question, budget, 1).free_bytes
        - request_memory(arrangement, question).request_bytes
    )


def out_of_reach(hardware: Hardware, question: ServeQuestion, found: SearchResult) -> str:
    """The line for limits that no point keeps: what can be reached, and where."""
    limits = []
    if question.ttft_limit_seconds is not None:
        limits.append(f"a first token within {question.ttft_limit_seconds:g} s")
    if question.tpot_limit_seconds is not None:
        limits.append(f"each further one within {question.tpot_limit_seconds:g} s")
    reached = []
    for name, field, point in (
        ("TTFT", "ttft_seconds", found.fastest_first_token),
        ("TPOT", "tpot_seconds", found.fastest_token),
    ):
        if point is not None:
            reached.append(
                f"{name} {getattr(point, field):.3g} s ({point.gpus} devices, {arrangement_text(point)}, "
                f"batch {point.batch}, steps of {point.token_budget_tokens:,} tokens)"
            )
    together = " They are not reached together." if _each_alone(question, found) else ""
    return (
        f"No arrangement of {hardware.name} keeps the limits. Given: {' and '.join(limits)}. "
        f"The best: {'; '.join(reached)}.{together}"
    )


def _each_alone(question: ServeQuestion, found: SearchResult) -> bool:
    if question.ttft_limit_seconds is None or question.tpot_limit_seconds is None:
        return False
    first, token = found.fastest_first_token, found.fastest_token
    return (
        first is not None
        and token is not None
        and first.ttft_seconds <= question.ttft_limit_seconds
        and token.tpot_seconds <= question.tpot_limit_seconds
    )
