"""The best arrangement of GPUs under limits: every division of a replica, each with its largest batch.

A search walks TP, DP, EP and CP that divide a replica and token budgets. In each, the time for a token, the
time to the first one and the memory all grow with the batch, so the largest batch under the limits is found
by halving. Points between 1 and the largest that fits make the Pareto front of tokens/s/GPU against
tokens/s/user.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import msgspec

from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.request_memory import largest_batch
from milepost.planner.serve.steady import Arrangement, ServePoint
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.hardware import Hardware
from milepost.sim.cost.parallel import divides_heads
from milepost.sim.cost.part_work import RankSizes

__all__ = [
    "DEFAULT_BUDGET",
    "CountBest",
    "Refusals",
    "SearchResult",
    "best_of",
    "deployment_counts",
    "divisions",
    "keeps_limits",
    "largest_under_limits",
    "pareto_front",
    "replica_sizes",
    "search",
]

DEFAULT_BUDGET = 8192
BUDGETS = (256, 512, 1024, 2048, 4096, 8192, 16384)
"""Token budgets that a search tries."""
MOST_CONTEXT_RANKS = 16
MOST_REPLICA = 512
"""Devices of the largest replica that is tried: seven racks of 72."""
_GRID = 1.35
"""From one batch of the front to the next."""


class Refusals(msgspec.Struct, frozen=True, kw_only=True):
    """Why divisions and token budgets were left out.

    Attributes:
        considered: all of them.
        memory: those where not one request fits.
        prefill: those where prefill can't keep up with even one decoding sequence.
        tpot: those that fit and are too slow a token even alone.
        ttft: those whose first token comes too late even alone.
        kept: the rest.
    """

    considered: int = 0
    memory: int = 0
    prefill: int = 0
    tpot: int = 0
    ttft: int = 0
    kept: int = 0


class CountBest(msgspec.Struct, frozen=True, kw_only=True):
    """The best for one number of devices.

    Attributes:
        gpus: of the deployment.
        replicas: of the point's devices, which make up all of them.
        point: of one replica.
    """

    gpus: int
    replicas: int
    point: ServePoint


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a search found.

    Attributes:
        best: most tokens/s/GPU under the limits; None where nothing keeps them.
        by_count: the best for each number of devices that keeps them.
        front: non-dominated points of tokens/s/GPU and tokens/s/user that fit, slowest user first.
        fastest_token: of all that fit, the one with the least time a token.
        fastest_first_token: the one with the least time to the first token.
        refusals: in counts.
    """

    best: ServePoint | None
    by_count: tuple[CountBest, ...]
    front: tuple[ServePoint, ...]
    fastest_token: ServePoint | None
    fastest_first_token: ServePoint | None
    refusals: Refusals


def keeps_limits(question: ServeQuestion, point: ServePoint) -> bool:
    """Whether a point keeps both limits."""
    ttft, tpot = question.ttft_limit_seconds, question.tpot_limit_seconds
    return (ttft is None or point.ttft_seconds <= ttft) and (tpot is None or point.tpot_seconds <= tpot)


def largest_under_limits(
    arrangement: Arrangement, question: ServeQuestion, budget: int, most: int
) -> ServePoint | None:
    """The point of the largest batch, at most `most`, that keeps the limits; None where 1 does not."""

    def good(batch: int) -> ServePoint | None:
        point = arrangement.point(batch, budget)
        return point if point is not None and keeps_limits(question, point) else None

    return _last(good, most)


def _last(good: Callable[[int], ServePoint | None], most: int) -> ServePoint | None:
    """By halving: `good` holds up to some batch and not beyond it."""
    if most < 1 or (found := good(1)) is None:
        return None
    low, high = 1, most
    while low < high:
        middle = (low + high + 1) // 2
        point = good(middle)
        if point is None:
            high = middle - 1
        else:
            low, found = middle, point
    return found


def deployment_counts(fewest: int, most: int) -> tuple[int, ...]:
    """Numbers of devices that a range stands for: its two ends and the powers of two between them."""
    return tuple(
        sorted({fewest, most} | {1 << n for n in range(most.bit_length()) if fewest <= 1 << n <= most})
    )


def replica_sizes(counts: Sequence[int]) -> tuple[int, ...]:
    """Devices of a replica that a search tries: up to 512 that divide one of the numbers of devices."""
    return tuple(sorted({size for count in counts for size in _divisors(count) if size <= MOST_REPLICA}))


def divisions(shape: ModelShape, ranks: int, itemsizes: tuple[int, int]) -> Iterator[RankSizes]:
    """The ways to divide a model among `ranks` devices.

    All tensor parallelism that the heads allow; experts among all ranks or a power of two of groups, contexts
    among a power of two of ranks.

    Args:
        shape: the model.
        ranks: devices of the replica.
        itemsizes: bytes of an element of KV and of a state.
    """
    for tensor in _divisors(ranks):
        if not divides_heads(shape, tensor):
            continue
        for experts in _expert_ranks(shape, tensor, ranks):
            for context in _context_ranks(shape, tensor):
                yield RankSizes(
                    tensor_parallel=tensor,
                    data_parallel=ranks // tensor,
                    expert_parallel=experts,
                    context_parallel=context,
                    kv_itemsize=itemsizes[0],
                    state_itemsize=itemsizes[1],
                )


def _expert_ranks(shape: ModelShape, tensor: int, ranks: int) -> list[int]:
    if shape.experts is None:
        return [0]
    most = max(shape.experts.num_experts, tensor)  # a group may share what is fewer than its ranks
    groups = [count for count in _divisors(ranks // tensor) if _is_power(count) or count * tensor == ranks]
    return [count * tensor for count in groups if count * tensor <= most]


def _context_ranks(shape: ModelShape, tensor: int) -> list[int]:
    if not shape.attention_layers:
        return [1]
    return [count for count in _divisors(tensor) if count <= MOST_CONTEXT_RANKS and _is_power(count)]


def _is_power(number: int) -> bool:
    """Whether it is a power of two."""
    return number & (number - 1) == 0


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def search(
    shape: ModelShape,
    hardware: Hardware,
    question: ServeQuestion,
    candidates: Sequence[RankSizes],
    counts: Sequence[int],
) -> SearchResult:
    """Try every division with every token budget.

    Args:
        shape: the model.
        hardware: the devices.
        question: requests and limits.
        candidates: the divisions; see `divisions`.
        counts: numbers of devices, of which a replica must be a divisor.
    """
    budgets = (question.token_budget,) if question.token_budget else BUDGETS
    verdicts = dict.fromkeys(Refusals.__struct_fields__, 0)
    points: list[ServePoint] = []
    largest: list[ServePoint] = []
    for sizes in candidates:
        arrangement = Arrangement(shape, hardware, sizes, question)
        for budget in budgets:
            verdicts["considered"] += 1
            most = largest_batch(arrangement, question, budget)
            found = _points(arrangement, budget, most)
            points += found
            verdicts[_verdict(question, most, found)] += 1
            if (best := largest_under_limits(arrangement, question, budget, most)) is not None:
                largest.append(best)
    allowed = [point for point in points if keeps_limits(question, point)] + largest
    return SearchResult(
        best=best_of(allowed),
        by_count=tuple(_best_of_count(count, allowed) for count in counts if _divides(count, allowed)),
        front=pareto_front(points + largest),
        fastest_token=min(points, key=lambda point: point.tpot_seconds, default=None),
        fastest_first_token=min(points, key=lambda point: point.ttft_seconds, default=None),
        refusals=Refusals(**verdicts),
    )


def _divides(count: int, points: Sequence[ServePoint]) -> list[ServePoint]:
    return [point for point in points if count % point.gpus == 0]


def _best_of_count(count: int, points: Sequence[ServePoint]) -> CountBest:
    """Most tokens/s/GPU of the replicas that make up so many devices."""
    best = max(_divides(count, points), key=_goodness)
    return CountBest(gpus=count, replicas=count // best.gpus, point=best)


def _points(arrangement: Arrangement, budget: int, most: int) -> list[ServePoint]:
    """The steady states of batches from 1 to `most`, some third apart, as far as prefill keeps up."""
    found = []
    batch = 1
    while batch <= most:
        point = arrangement.point(batch, budget)
        if point is None:
            break
        found.append(point)
        batch = max(batch + 1, int(batch * _GRID))
    return found


def _verdict(question: ServeQuestion, most: int, found: list[ServePoint]) -> str:
    if most < 1:
        return "memory"
    if not found:
        return "prefill"
    alone = found[0]
    if question.tpot_limit_seconds is not None and alone.tpot_seconds > question.tpot_limit_seconds:
        return "tpot"
    if question.ttft_limit_seconds is not None and alone.ttft_seconds > question.ttft_limit_seconds:
        return "ttft"
    return "kept"


def best_of(points: Sequence[ServePoint]) -> ServePoint | None:
    """Most tokens/s/GPU; of equals the fewest devices, then the faster token."""
    return max(points, key=_goodness, default=None)


def _goodness(point: ServePoint) -> tuple[float, int, float]:
    return point.tokens_per_second_per_gpu, -point.gpus, point.tokens_per_second_per_user


def pareto_front(points: Sequence[ServePoint]) -> tuple[ServePoint, ...]:
    """The points that none other beats in both speeds, slowest user first."""
    ordered = sorted(
        points,
        key=lambda point: (-point.tokens_per_second_per_user, -point.tokens_per_second_per_gpu, point.gpus),
    )
    front: list[ServePoint] = []
    for point in ordered:
        if not front or point.tokens_per_second_per_gpu > front[-1].tokens_per_second_per_gpu:
            front.append(point)
    return tuple(reversed(front))
