"""One instance of a side: hardware, ranks, what it holds, and how long prefill and decode steps take there.

Times are those of `milepost.sim.cost.roofline.RooflineCost`, of which a step's work is asked:

    prefill, alone     chunk by chunk, each a step of one row: what one request waits for
    prefill, filled    the last, partly filled chunk shares its step with others like it: what a request
                       takes of a busy instance
    decode             a step of as many rows as the batch has, each with the mix's mean context
    mixed              a decode step that also computes a chunk of somebody's prompt
    spread             one that computes so many tokens of prompts that these keep up with decoding

An instance has `data_parallel` groups of `tensor_parallel` ranks; each group serves requests of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import msgspec

from milepost.errors import ConfigError
from milepost.planner.device_memory import free_memory
from milepost.planner.disagg.streaming import Chunk
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.by_name import MOST_RANKS, ranks_that_fit
from milepost.sim.cost.hardware import Hardware
from milepost.sim.cost.parallel import divides_heads, division_text
from milepost.sim.cost.part_work import RankSizes, StepParts
from milepost.sim.cost.roofline import PartCost, RooflineCost
from milepost.sim.cost.step_work import StepWork, causal_pairs

__all__ = ["Instance", "arrangements", "largest_within"]

_TENSOR_PARALLEL = (1, 2, 4, 8, 16)


class Instance:
    """One instance.

    Args:
        shape: the model.
        hardware: its devices.
        sizes: how the model is divided among them.
        memory_share: of a device's memory, what weights, states and KV may take.
        chunk_tokens: most tokens of a prompt that one step computes.
        tokens_per_step: that activations must have room for; 0 for `chunk_tokens`.

    Raises:
        ConfigError: ranks that can't divide the model.
    """

    def __init__(
        self,
        shape: ModelShape,
        hardware: Hardware,
        sizes: RankSizes,
        *,
        memory_share: float,
        chunk_tokens: int,
        tokens_per_step: int = 0,
    ) -> None:
        self.shape = shape
        self.hardware = hardware
        self.sizes = sizes
        self.memory_share = memory_share
        self.chunk_tokens = chunk_tokens
        self.cost = RooflineCost(hardware, shape, sizes)
        parts = StepParts(shape, sizes)
        self.state_bytes = parts.state_bytes
        self.kv_bytes_per_token = parts.kv_bytes_per_token / sizes.context_parallel
        self.weight_bytes = self.cost.weight_bytes
        self.tokens_per_step = tokens_per_step or chunk_tokens
        self.free_bytes = free_memory(
            shape, hardware, sizes, memory_share=memory_share, tokens_per_step=self.tokens_per_step
        ).free_bytes

    @property
    def name(self) -> str:
        """Such as "TP2 x DP4"."""
        return division_text(self.sizes.tensor_parallel, self.sizes.data_parallel)

    @property
    def devices(self) -> int:
        """All ranks."""
        return self.sizes.ranks

    @property
    def groups(self) -> int:
        """Groups that serve requests beside each other."""
        return self.sizes.data_parallel

    def largest_batch(self, tokens: float, slots: float = 1.0) -> int:
        """Requests of that length that a group's ranks hold at once, each with its states."""
        return max(0, math.floor(self.free_bytes / self.request_bytes(tokens, slots)))

    def request_bytes(self, tokens: float, slots: float = 1.0) -> float:
        """What one request of that length takes of a device."""
        return slots * self.state_bytes + tokens * self.kv_bytes_per_token

    def roomy(self, tokens: float, slots: float = 1.0) -> Instance | None:
        """This instance, or the first with twice, four times ... its groups that holds such a request.

        More groups share the experts, so each device holds fewer of them. None where `MOST_RANKS` don't help.
        """
        found = self
        while found.largest_batch(tokens, slots) < 1:
            sizes = msgspec.structs.replace(found.sizes, data_parallel=2 * found.groups)
            if sizes.ranks > MOST_RANKS or found.shape.experts is None:
                return None
            found = Instance(
                found.shape,
                found.hardware,
                sizes,
                memory_share=found.memory_share,
                chunk_tokens=found.chunk_tokens,
                tokens_per_step=found.tokens_per_step,
            )
        return found

    # -- prefill ------------------------------------------------------------------------------

    def prefill_steps(self, uncached: int, cached: int) -> list[StepWork]:
        """The steps of a prompt that is alone, chunk by chunk."""
        done, end, found = cached, cached + uncached, []
        while done < end:
            count = min(self.chunk_tokens, end - done)
            found.append(_chunk_work(1, count, done, sampled=done + count == end))
            done += count
        return found

    def prefill_parts(self, uncached: int, cached: int) -> list[tuple[PartCost, ...]]:
        """The parts of each of these steps."""
        return [self.cost.breakdown(work) for work in self.prefill_steps(uncached, cached)]

    def chunks(self, uncached: int, cached: int) -> list[Chunk]:
        """The same as times, with the bytes of KV (of all ranks, each row once)."""
        row_bytes = self._whole_kv_bytes_per_token
        return [
            Chunk(self.cost.seconds(work), work.tokens * row_bytes)
            for work in self.prefill_steps(uncached, cached)
        ]

    def prefill_seconds(self, uncached: int, cached: int) -> float:
        """What one prompt takes that is alone."""
        return math.fsum(chunk.seconds for chunk in self.chunks(uncached, cached))

    def filled_seconds(self, uncached: int, cached: int) -> float:
        """What one prompt takes of a busy group, whose steps are filled."""
        rest = uncached % self.chunk_tokens
        whole = uncached - rest
        seconds = math.fsum(chunk.seconds for chunk in self.chunks(whole, cached)) if whole else 0.0
        if rest:
            rows = max(1, self.chunk_tokens // rest)
            seconds += self.cost.seconds(_chunk_work(rows, rest, cached + whole, sampled=True)) / rows
        return seconds

    @property
    def _whole_kv_bytes_per_token(self) -> float:
        layer = self.shape.attention
        if layer is None:
            return 0.0
        return float(self.shape.attention_layers * layer.row_dim * self.sizes.kv_itemsize)

    # -- decode -------------------------------------------------------------------------------

    def decode_step(self, batch: int, context: float) -> StepWork:
        """A decode step of a group's batch."""
        total = round(batch * context)
        return StepWork(tokens=batch, rows=batch, sampled=batch, context=total, pairs=total)

    def step_seconds(self, batch: int, context: float) -> float:
        """What it takes."""
        return self.cost.seconds(self.decode_step(batch, context))

    def mixed_seconds(self, batch: int, context: float, uncached: int, cached: int) -> float:
        """Decode steps that also compute a prompt, chunk by chunk, in all."""
        decode = self.decode_step(batch, context)
        prompt = self.prefill_steps(uncached, cached)
        return math.fsum(self.cost.seconds(decode.beside(work)) for work in prompt)

    def spread_seconds(self, batch: int, context: float, tokens: float, before: float) -> float:
        """A decode step that also computes so many tokens of prompts, behind `before` tokens in the mean."""
        held = batch * context
        return self.cost.seconds(
            StepWork(
                tokens=batch + round(tokens),
                rows=batch + 1,
                sampled=batch,
                context=round(held + before),
                pairs=round(held + tokens * before),
            )
        )

    def batch_within(self, context: float, limit: float, most: int) -> int:
        """The largest batch up to `most` whose step takes at most `limit` seconds; 0 for none."""
        return largest_within(lambda batch: self.step_seconds(batch, context), limit, most)


def largest_within(seconds: Callable[[int], float], limit: float, most: int) -> int:
    """The largest number up to `most` whose growing `seconds` are at most `limit`; 0 for none."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if seconds(middle) <= limit:
            low = middle
        else:
            high = middle - 1
    return low


def _chunk_work(rows: int, tokens: int, before: int, *, sampled: bool) -> StepWork:
    """Of a step with a chunk of each of some prompts, behind `before` of their tokens."""
    return StepWork(
        tokens=rows * tokens,
        rows=rows,
        sampled=rows if sampled else 0,
        context=rows * (before + tokens),
        pairs=rows * causal_pairs(tokens, before),
    )


def arrangements(
    shape: ModelShape,
    hardware: Hardware,
    tensor_parallel: int,
    data_parallel: int,
    *,
    expert_parallel: int = 0,
    context_parallel: int = 1,
    kv_itemsize: int = 2,
    state_itemsize: int = 4,
) -> list[RankSizes]:
    """The ways to divide a model that are tried: the one that is given, or for 0 a few.

    Args:
        shape: the model.
        hardware: the devices.
        tensor_parallel: ranks that share the heads; 0 for 1, 2, 4, 8 and 16, as far as they divide the heads.
        data_parallel: such groups; 0 for the fewest that hold the weights.
        expert_parallel: ranks that share one copy of the experts; 0 for all.
        context_parallel: of the ranks that share the heads, those that divide a context.
        kv_itemsize: bytes of a cached KV element.
        state_itemsize: bytes of an element of the recurrent matrices.

    Raises:
        ConfigError: none of them holds the weights.
    """
    tried = [tensor_parallel] if tensor_parallel else _TENSOR_PARALLEL
    found: list[RankSizes] = []
    refused: ConfigError | None = None
    for ranks in tried:
        if not tensor_parallel and not divides_heads(shape, ranks):
            continue
        try:
            groups = data_parallel or ranks_that_fit(hardware, shape, ranks) // ranks
        except ConfigError as error:
            refused = error
            continue
        found.append(
            RankSizes(
                tensor_parallel=ranks,
                data_parallel=groups,
                expert_parallel=expert_parallel,
                context_parallel=context_parallel,
                kv_itemsize=kv_itemsize,
                state_itemsize=state_itemsize,
            )
        )
    if not found:
        raise refused or ConfigError("No arrangement fits.")
    return found
