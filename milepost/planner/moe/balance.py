"""How much more the busiest rank has to do than the mean, by seeded draws.

A step's tokens choose experts at random by the shares of `milepost.planner.moe.loads.chosen_shares`; there is
no closed form for the mean of the maximum over ranks, so it is drawn (Monte Carlo, numpy, a given seed).
Choices are drawn with replacement (multinomial). A token's experts are distinct in truth, which makes sums of
ranks vary less, by (N - 1) / (N - k) in the variance: 1.7 % for Kimi K3. What is drawn errs on the busy side.

The mean number of experts that are touched is closed: sum over experts of 1 - (1 - p)^tokens, which for an
even load is N (1 - (1 - k/N)^tokens). Of the busiest rank it is the mean times what was drawn of busiest to
mean.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt

from milepost.planner.moe.loads import ExpertLoads, chosen_shares
from milepost.planner.moe.placement import PlacedExperts, place_by_load, place_by_number
from milepost.planner.moe.question import Placement

__all__ = ["MOST_LAYERS", "SAMPLES", "LoadDraws", "RankBalance"]

SAMPLES = 64
"""Steps that are drawn for one figure; over many layers at least `_LEAST_SAMPLES` of each."""
_LEAST_SAMPLES = 4
MOST_LAYERS = 16
"""Of a file with more layers, as many are taken, evenly spread from the first to the last."""

Draws = npt.NDArray[np.int64]


class RankBalance(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of one copy of the experts, as uneven as a step makes them.

    Attributes:
        max_over_mean: choices that fall on the busiest rank, over the mean of the ranks; its mean over steps.
        touched_experts: that a rank touches in a step, in the mean.
        busiest_touched_experts: the same of the rank that touches most.
    """

    max_over_mean: float
    touched_experts: float
    busiest_touched_experts: float


class LoadDraws:
    """Draws of one distribution, shared by all degrees with as many tokens.

    Args:
        loads: of the experts.
        top_k: experts a token.
        redundant_per_rank: further slots of a rank, where experts are replicated.
        seed: of the draws.
    """

    def __init__(self, loads: ExpertLoads, top_k: int, redundant_per_rank: int, seed: int) -> None:
        self._loads = loads
        self._top_k = top_k
        self._redundant = redundant_per_rank
        self._seed = seed
        chosen = (
            np.linspace(0, len(loads.layers) - 1, min(MOST_LAYERS, len(loads.layers))).round().astype(int)
        )
        self._shares = [chosen_shares(loads.layers[layer], top_k) for layer in chosen]
        self._drawn: dict[tuple[int, bool], list[Draws]] = {}
        self._placed: dict[tuple[Placement, int, int], PlacedExperts] = {}

    def balance(self, placement: Placement, ranks: int, tokens: float) -> RankBalance:
        """Mean over the layers of the loads.

        Args:
            placement: which experts lie where.
            ranks: that hold one copy of the experts.
            tokens: of a step, of all these ranks.
        """
        per_layer = [
            self._one(layer, placement, ranks, tokens, drawn)
            for layer, drawn in enumerate(self._draws(placement, max(1, round(tokens))))
        ]
        means = np.mean(per_layer, axis=0)
        return RankBalance(
            max_over_mean=float(means[0]),
            touched_experts=float(means[1]),
            busiest_touched_experts=float(means[2]),
        )

    def even(self, ranks: int, tokens: float) -> RankBalance:
        """As if every rank had the mean, without replicas."""
        touched = float(np.mean([self._touched(layer, tokens) for layer in range(len(self._shares))])) / ranks
        return RankBalance(max_over_mean=1.0, touched_experts=touched, busiest_touched_experts=touched)

    def _touched(self, layer: int, tokens: float) -> float:
        """Experts of a layer that some token takes."""
        shares = np.minimum(self._shares[layer], 1 - 1e-15)
        return float(-np.expm1(tokens * np.log1p(-shares)).sum())

    def _one(
        self, layer: int, placement: Placement, ranks: int, tokens: float, counts: Draws
    ) -> tuple[float, float, float]:
        """Busiest over mean, touched experts of a rank, and of the rank that touches most."""
        placed = self._place(placement, ranks, layer)
        choices = (counts / placed.replicas)[:, placed.experts]  # [samples, slots]
        touched = counts[:, placed.experts] > placed.ordinal
        busiest = _by_rank(choices, placed).max(axis=1).mean()
        most = _by_rank(touched, placed).max(axis=1).mean()
        drawn = touched.sum(axis=1).mean() / ranks
        # Closed, so exact for tokens whose experts are distinct; of replicas, times drawn slots an expert.
        mean = self._touched(layer, tokens) * drawn / (counts > 0).sum(axis=1).mean()
        room = np.bincount(placed.rank, minlength=ranks).max()
        return busiest * ranks / counts.sum(axis=1).mean(), mean, min(float(room), mean * most / drawn)

    def _draws(self, placement: Placement, tokens: int) -> list[Draws]:
        """[samples, experts] choices of each layer.

        Where nobody knows which experts are the hot ones, those that lie by their numbers are shuffled.
        """
        shuffled = placement == "numbered" and not self._loads.ordered
        if (tokens, shuffled) not in self._drawn:
            source = np.random.default_rng([self._seed, tokens, shuffled])
            if shuffled:
                drawn = [source.permuted(one, axis=1) for one in self._draws("balanced", tokens)]
            else:
                samples = max(_LEAST_SAMPLES, SAMPLES // len(self._shares))
                drawn = [
                    source.multinomial(tokens * self._top_k, one / one.sum(), samples) for one in self._shares
                ]
            self._drawn[tokens, shuffled] = drawn
        return self._drawn[tokens, shuffled]

    def _place(self, placement: Placement, ranks: int, layer: int) -> PlacedExperts:
        key = (placement, ranks, layer)
        if key not in self._placed:
            shares = self._shares[layer]
            if placement == "numbered":
                placed = place_by_number(len(shares), ranks)
            else:
                placed = place_by_load(shares, ranks, self._redundant if placement == "replicated" else 0)
            self._placed[key] = placed
        return self._placed[key]


def _by_rank(of_slots: npt.NDArray[np.generic], placed: PlacedExperts) -> npt.NDArray[np.float64]:
    """[samples, ranks]: sums over the slots of each rank."""
    order = np.argsort(placed.rank, kind="stable")
    ranks, starts = np.unique(placed.rank[order], return_index=True)
    sums = np.zeros((len(of_slots), placed.ranks))
    sums[:, ranks] = np.add.reduceat(of_slots[:, order], starts, axis=1, dtype=np.float64)
    return sums
