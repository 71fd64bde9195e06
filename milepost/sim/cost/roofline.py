"""A step's time from a model and hardware: each part takes the longer of its FLOPs and its bytes (roofline).

`milepost.sim.cost.part_work` says what each part of a rank computes and moves, with the formulas;
`Hardware` how fast that goes. Parts run one after the other. ``docs/cost-model.md`` lists what is not
modelled.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from milepost.error_text import printable
from milepost.model_spec import ModelSpec
from milepost.shapes.of_spec import shape_of
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.hardware import Hardware
from milepost.sim.cost.parallel import check_parallel, division_text
from milepost.sim.cost.part_weights import EXPERTS, rank_weight_bytes
from milepost.sim.cost.part_work import (
    COLLECTIVES,
    LAUNCHES,
    PartWork,
    RankSizes,
    StepParts,
)
from milepost.sim.cost.step_work import StepWork

__all__ = ["PartCost", "RooflineCost"]

ONE_RANK = RankSizes()
_MOST_REMEMBERED = 1 << 16


class PartCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one part of a step comes to, on one rank.

    Attributes:
        name: of the part.
        flops: floating-point operations.
        bytes: read and written in memory; of collectives, sent over the links.
        seconds: what it takes.
        bound: what decides that: "compute", "memory", "network" or "latency".
    """

    name: str
    flops: float
    bytes: float
    seconds: float
    bound: str


class RooflineCost:
    """The roofline of one rank; satisfies `milepost.sim.cost.step_work.CostModel`.

    A `StepWork` is that of one group of `tensor_parallel` ranks. With `data_parallel` groups beside each
    other, which share the routed experts among all their ranks, every group is taken to be as busy.

    Args:
        hardware: the devices.
        model: the model.
        sizes: how it is divided among them, and its item sizes.

    Raises:
        ConfigError: a division that can't be; see `milepost.sim.cost.parallel.check_parallel`.
    """

    def __init__(
        self, hardware: Hardware, model: ModelSpec | ModelShape, sizes: RankSizes = ONE_RANK
    ) -> None:
        shape = shape_of(model)
        check_parallel(
            shape,
            sizes.tensor_parallel,
            sizes.data_parallel,
            expert_parallel=sizes.expert_parallel,
            context_parallel=sizes.context_parallel,
        )
        self._shape = shape
        self.hardware = hardware
        self.sizes = sizes
        self.devices = sizes.ranks
        self.weight_bytes = rank_weight_bytes(
            shape, sizes.tensor_parallel, sizes.ranks, expert_parallel=sizes.expert_parallel
        )
        self._parts = StepParts(shape, sizes)
        self._expert_bytes = shape.experts.bytes_per_parameter if shape.experts else 2.0
        self._remembered: dict[int, float] = {}
        self._quick = self._compile()

    def __reduce__(self) -> tuple[type[RooflineCost], tuple[Hardware, ModelShape, RankSizes]]:
        return RooflineCost, (self.hardware, self._shape, self.sizes)

    @property
    def name(self) -> str:
        """Hardware, and how many of it in which arrangement."""
        name = printable(self.hardware.name)
        if self.devices == 1:
            return name
        division = division_text(self.sizes.tensor_parallel, self.sizes.data_parallel)
        return f"{self.devices} x {name} ({division})"

    def seconds(self, work: StepWork) -> float:
        """Of one step; the sum of `breakdown`'s parts."""
        return self._quick(work)

    def breakdown(self, work: StepWork) -> tuple[PartCost, ...]:
        """What each part of a step comes to; parts that the model lacks are left out."""
        parts = [self._cost(part) for part in self._parts.by_tokens(work.tokens)]
        if self._parts.recurrence_name:
            parts.append(self._cost(self._parts.recurrence(work.tokens, work.rows)))
        if self._parts.attention_name:
            forms = map(self._cost, self._parts.attention(work))
            parts.append(min(forms, key=lambda cost: cost.seconds))
        if work.sampled:
            parts.append(self._cost(self._parts.head(work.sampled)))
        parts.append(self._cost(self._parts.snapshots(work.snapshots)))
        parts.append(self._cost(self._parts.copies(work.copied_pages)))
        parts.append(self._collectives(work.tokens))
        parts.append(self._launches())
        return tuple(parts)

    # -- times of parts -------------------------------------------------------------------------

    def _rates(self, name: str) -> tuple[float, float]:
        """FLOP/s and bytes/s that a part reaches."""
        hardware, share = self.hardware, self.hardware.efficiency
        peak = hardware.peak_flops
        flops, memory = peak.bf16 * share.compute, share.memory
        if name == EXPERTS:
            flops = peak.of_experts(self._expert_bytes)[1] * share.experts
        elif name == self._parts.attention_name:
            flops, memory = peak.bf16 * share.attention, share.cache
        elif name == self._parts.recurrence_name:
            flops = peak.bf16 * share.recurrence
        return flops, hardware.memory_bytes_per_second * memory

    def _rated(self, part: PartWork) -> tuple[float, float]:
        """Seconds of its FLOPs, and of its bytes."""
        flops_rate, bytes_rate = self._rates(part.name)
        return part.flops / flops_rate, part.bytes / bytes_rate

    def _cost(self, part: PartWork) -> PartCost:
        compute, memory = self._rated(part)
        return PartCost(
            name=part.name,
            flops=part.flops,
            bytes=part.bytes,
            seconds=max(compute, memory),
            bound="compute" if compute > memory else "memory",
        )

    def _collectives(self, tokens: int) -> PartCost:
        """Bytes over the link that is crossed, and a latency for each operation."""
        hardware = self.hardware
        waiting = sending = sent = 0.0
        for kind in self._parts.collectives(tokens):
            bandwidth, latency = hardware.link(kind.ranks)
            sent += kind.bytes
            waiting += kind.operations * latency
            sending += kind.bytes / (bandwidth * hardware.efficiency.network)
        return PartCost(
            name=COLLECTIVES,
            flops=0.0,
            bytes=sent,
            seconds=waiting + sending,
            bound="latency" if waiting >= sending else "network",
        )

    def _launches(self) -> PartCost:
        seconds = self.hardware.step_seconds + self._parts.kernels * self.hardware.kernel_seconds
        return PartCost(name=LAUNCHES, flops=0.0, bytes=0.0, seconds=seconds, bound="latency")

    # -- the quick way --------------------------------------------------------------------------

    def _remember(self, tokens: int) -> float:
        """Everything that depends on the number of tokens alone, which few steps differ in."""
        if len(self._remembered) >= _MOST_REMEMBERED:
            self._remembered.clear()
        seconds = sum(self._cost(part).seconds for part in self._parts.by_tokens(tokens))
        seconds += self._collectives(tokens).seconds + self._launches().seconds
        self._remembered[tokens] = seconds
        return seconds

    def _compile(self) -> Callable[[StepWork], float]:
        """`seconds` with every rate divided out: a simulation asks for it millions of times."""
        snapshot, copy = (self._rated(part)[1] for part in (self._parts.snapshots(1), self._parts.copies(1)))
        recurrence, attention, head = (
            self._compile_recurrence(),
            self._compile_attention(),
            self._compile_head(),
        )
        remembered, remember = self._remembered, self._remember

        def seconds(work: StepWork) -> float:
            fixed = remembered.get(work.tokens)
            if fixed is None:
                fixed = remember(work.tokens)
            total = fixed + recurrence(work.tokens, work.rows)
            total += attention(work.tokens, work.context, work.pairs)
            if work.sampled:
                total += head(work.sampled)
            return total + work.snapshots * snapshot + work.copied_pages * copy

        return seconds

    def _compile_recurrence(self) -> Callable[[int, int], float]:
        compute_token, memory_token = self._rated(self._parts.recurrence(1, 0))
        memory_row = self._rated(self._parts.recurrence(0, 1))[1]
        return lambda tokens, rows: max(tokens * compute_token, rows * memory_row + tokens * memory_token)

    def _compile_attention(self) -> Callable[[int, int, int], float]:
        none = StepWork(tokens=0, rows=0, sampled=0, context=0, pairs=0)
        token, context, pair = (
            [self._rated(form) for form in self._parts.attention(msgspec.structs.replace(none, **{name: 1}))]
            for name in ("tokens", "context", "pairs")
        )
        # FLOPs of the first form grow with tokens, of the last with context; with one form it is both.
        (first_token, read_token), first_pair, read_context = token[0], pair[0][0], context[0][1]
        (last_context, made_context), last_pair, made_token = context[-1], pair[-1][0], token[-1][1]

        def seconds(tokens: int, context: int, pairs: int) -> float:
            first = max(
                tokens * first_token + pairs * first_pair, context * read_context + tokens * read_token
            )
            last = max(
                context * last_context + pairs * last_pair, context * made_context + tokens * made_token
            )
            return min(first, last)

        return seconds

    def _compile_head(self) -> Callable[[int], float]:
        (compute, one), (_, two) = self._rated(self._parts.head(1)), self._rated(self._parts.head(2))
        weights, logits = 2 * one - two, two - one
        return lambda sampled: max(sampled * compute, weights + sampled * logits)
