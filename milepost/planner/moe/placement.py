"""Which experts lie on which rank, and how often the hottest ones.

The two steps of DeepSeek's EPLB (github.com/deepseek-ai/EPLB), each greedy: a further replica goes to the
expert whose replicas are the busiest; then slots, busiest first, go to the rank with the least load that has
room.
"""

from __future__ import annotations

import heapq

import msgspec
import numpy as np
import numpy.typing as npt

__all__ = ["PlacedExperts", "place_by_load", "place_by_number", "slots_of"]

Counts = npt.NDArray[np.int64]


class PlacedExperts(msgspec.Struct, frozen=True, kw_only=True):
    """Slots of all ranks.

    Attributes:
        ranks: that hold one copy of the experts.
        experts: [slots]: the expert in each slot.
        rank: [slots]: the rank of each slot.
        ordinal: [slots]: 0 for an expert's first slot, 1 for its second.
        replicas: [experts]: slots of each expert.
    """

    ranks: int
    experts: Counts
    rank: Counts
    ordinal: Counts
    replicas: Counts


def slots_of(num_experts: int, ranks: int, redundant_per_rank: int = 0) -> int:
    """Experts that the fullest of `ranks` ranks holds."""
    return -(-num_experts // ranks) + redundant_per_rank


def place_by_number(num_experts: int, ranks: int) -> PlacedExperts:
    """Each rank holds the next experts; where that leaves a rest, the first ranks hold one more."""
    each, more = divmod(num_experts, ranks)
    sizes = np.full(ranks, each)
    sizes[:more] += 1
    experts = np.arange(num_experts)
    return PlacedExperts(
        ranks=ranks,
        experts=experts,
        rank=np.repeat(np.arange(ranks), sizes),
        ordinal=np.zeros(num_experts, dtype=np.int64),
        replicas=np.ones(num_experts, dtype=np.int64),
    )


def place_by_load(loads: npt.NDArray[np.float64], ranks: int, redundant_per_rank: int = 0) -> PlacedExperts:
    """Balanced by `loads` [experts]; with redundant slots every slot of every rank is filled."""
    num_experts = len(loads)
    room = slots_of(num_experts, ranks, redundant_per_rank)
    replicas = np.ones(num_experts, dtype=np.int64)
    if redundant_per_rank:
        _replicate(loads, replicas, room * ranks - num_experts)
    experts = np.repeat(np.arange(num_experts), replicas)
    ordinal = np.concatenate([np.arange(count) for count in replicas])
    order = np.argsort(-(loads / replicas)[experts], kind="stable")
    experts, ordinal = experts[order], ordinal[order]
    rank = _pack((loads / replicas)[experts], ranks, room)
    return PlacedExperts(ranks=ranks, experts=experts, rank=rank, ordinal=ordinal, replicas=replicas)


def _replicate(loads: npt.NDArray[np.float64], replicas: Counts, more: int) -> None:
    heap = [(-float(load), index) for index, load in enumerate(loads)]
    heapq.heapify(heap)
    for _ in range(more):
        _, index = heap[0]
        replicas[index] += 1
        heapq.heapreplace(heap, (-float(loads[index]) / int(replicas[index]), index))


def _pack(loads: npt.NDArray[np.float64], ranks: int, room: int) -> Counts:
    heap = [(0.0, rank, 0) for rank in range(ranks)]
    found = np.empty(len(loads), dtype=np.int64)
    for slot, load in enumerate(loads.tolist()):
        total, rank, held = heap[0]
        found[slot] = rank
        if held + 1 < room:
            heapq.heapreplace(heap, (total + load, rank, held + 1))
        else:
            heapq.heappop(heap)
    return found
