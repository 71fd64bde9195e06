"""Prefill and decode on the same devices, in the steady state: the formulas, for one arrangement.

One tensor-parallel group of t ranks decodes B sequences; whenever one ends, another prompt is taken, of N
tokens that no cache has. A step yields a tokens a row (1, or the accepted length with drafts) and computes v
a row (1, or 1 + K). A step of C tokens at most has room for prompts beside the decoding rows:

    r       = B a / O                     requests that end, and begin, in a step
    room    = C - B v                     tokens for prompts in a step
    chunk   = min(room, N max(1, r))      tokens of prompts in a mixed step: one prompt's, or several
    f       = r N / chunk                 share of the steps that are mixed
    rho     = r N / room                  load of prefill; at most 0.9, as waits grow without end towards 1
    step    = (1 - f) t_d + f t_m         mean step: t_d of decode alone, t_m with a chunk beside it
    TPOT    = step / a
    TTFT    = wait + (n + b (ceil(n) - n)) (t_m - t_d) + ceil(n) t_d,  n = max(1, N / chunk)
    wait    = (phi max(S, t_m) + (1 - phi) t_d) / 2 + b^2 S / (2 (1 - b))
    S       = N / room t_m                time that a prompt takes of its group
    phi     = f t_m / step                share of the time in mixed steps
    b       = rho t_m / step              share of the time that prompts keep their room full
    tokens/s/GPU  = B a / (step t)
    tokens/s/user = 1 / TPOT

Prompts come at random (Poisson). One waits for what runs when it comes, in the mean half of it, and for the
prompts before it, as in an M/D/1 queue; the last of its own steps is filled up by the next prompt if there is
one. t_d and t_m are rooflines of a step with the mean context: half of an answer is written, a prompt's chunk
lies in its middle. The first token comes with the prefill and is counted as a decode step too, an error of
one token in O. Tests hold the formulas against a simulation step by step.
"""

from __future__ import annotations

import math

import msgspec

from milepost.planner.serve.question import ServeQuestion
from milepost.planner.serve.speculation import Speculation, StateBytes, state_bytes_of
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.hardware import Hardware
from milepost.sim.cost.part_work import RankSizes, StepParts
from milepost.sim.cost.roofline import RooflineCost
from milepost.sim.cost.step_work import StepWork, step_seconds

__all__ = ["Arrangement", "ServePoint"]

BF16 = 2.0
MOST_LOAD = 0.9
"""Of the room that steps have for prompts, what may be used."""


class ServePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One arrangement of a replica at one batch; the module has the formulas.

    Attributes:
        gpus: devices of the replica.
        tensor_parallel: ranks that share the heads.
        data_parallel: groups of them.
        expert_parallel: ranks that share one copy of the experts.
        context_parallel: of the tensor-parallel ranks, those that share a context.
        token_budget_tokens: most tokens of a step of a group.
        batch: sequences that decode together in a group.
        chunk_tokens: of prompts in a mixed step.
        mixed_share: of the steps.
        prefill_load: of the room for prompts, what is used; at most 0.9.
        decode_step_seconds: of a step without prompts.
        mixed_step_seconds: of a step with a chunk; the longest gap between two tokens.
        mean_step_seconds: of both.
        ttft_seconds: mean time to the first token, waiting included.
        tpot_seconds: mean time of each further token.
        tokens_per_second_per_gpu: output.
        tokens_per_second_per_user: output of one sequence.
        requests_per_second: of the replica.
    """

    gpus: int
    tensor_parallel: int
    data_parallel: int
    expert_parallel: int
    context_parallel: int
    token_budget_tokens: int
    batch: int
    chunk_tokens: int
    mixed_share: float
    prefill_load: float
    decode_step_seconds: float
    mixed_step_seconds: float
    mean_step_seconds: float
    ttft_seconds: float
    tpot_seconds: float
    tokens_per_second_per_gpu: float
    tokens_per_second_per_user: float
    requests_per_second: float


class Arrangement:
    """One division of a model among devices, with its roofline; evaluates batches quickly.

    Args:
        shape: the model.
        hardware: the devices.
        sizes: the division.
        question: the requests.
    """

    def __init__(
        self, shape: ModelShape, hardware: Hardware, sizes: RankSizes, question: ServeQuestion
    ) -> None:
        self.shape = shape
        self.hardware = hardware
        self.sizes = sizes
        self.cost = RooflineCost(hardware, shape, sizes)
        self.parts = StepParts(shape, sizes)
        self.speculation = question.speculation
        self._question = question
        self.states = _states(shape, sizes, question.speculation)
        self._memory_rate = hardware.memory_bytes_per_second * hardware.efficiency.memory
        self._decode_seconds: dict[int, float] = {}

    # -- the work of steps ----------------------------------------------------------------------

    @property
    def mean_context(self) -> int:
        """Tokens of a decoding sequence, half of whose output is written."""
        return self._question.input_tokens + (self._question.output_tokens + 1) // 2

    def decode_work(self, batch: int, context: int = 0) -> StepWork:
        """One step of `batch` decoding rows of `context` tokens each; 0 for `mean_context`."""
        context = context or self.mean_context
        tokens = batch * self.verified
        return StepWork(
            tokens=tokens, rows=batch, sampled=tokens, context=batch * context, pairs=tokens * context
        )

    def mixed_work(self, batch: int, chunk: int) -> StepWork:
        """The same with `chunk` tokens of prompts beside it, at the middle of their prompts."""
        return self.decode_work(batch).beside(self.prefill_work(chunk))

    def prefill_work(self, chunk: int) -> StepWork:
        """A mean step with `chunk` tokens of prompts alone: a part of one prompt, or several whole."""
        new, hit = self._question.new_tokens, self._question.hit_tokens
        rows = max(1, -(-chunk // new))
        context = hit + (new + chunk) // 2 if rows == 1 else rows * hit + chunk
        return StepWork(
            tokens=chunk,
            rows=rows,
            sampled=rows,
            context=context,
            pairs=chunk * hit + chunk * (new + 1) // 2,
        )

    @property
    def verified(self) -> int:
        """Tokens of a decoding row in a step."""
        return self.speculation.verified if self.speculation else 1

    @property
    def accepted(self) -> float:
        """Tokens that a step yields a row."""
        return self.speculation.accepted_length if self.speculation else 1.0

    # -- times ----------------------------------------------------------------------------------

    def decode_seconds(self, batch: int) -> float:
        """Of one step of decode alone, drafts included."""
        found = self._decode_seconds.get(batch)
        if found is None:
            found = step_seconds(self.cost, self.decode_work(batch)) + self.draft_seconds(batch)
            self._decode_seconds[batch] = found
        return found

    def mixed_seconds(self, batch: int, chunk: int) -> float:
        """Of one step with a chunk of prompts."""
        return step_seconds(self.cost, self.mixed_work(batch, chunk)) + self.draft_seconds(batch)

    def prefill_seconds(self, budget: int) -> float:
        """Of a prompt on idle devices: equal chunks, as few as the budget allows."""
        new = self._question.new_tokens
        count = -(-new // budget)
        return count * step_seconds(self.cost, self.prefill_work(-(-new // count)))

    def draft_seconds(self, batch: int) -> float:
        """What drafts add to a step: extra traffic of states, and the draft model's passes."""
        spec = self.speculation
        if spec is None:
            return 0.0
        extra = batch * self.states.step_extra_bytes / self._memory_rate
        return extra + self.draft_model_seconds(batch)

    def draft_model_seconds(self, batch: int) -> float:
        """Of the draft model's passes: weights and head read in each, two all-reduces a layer, launches."""
        spec = self.speculation
        if spec is None or not spec.draft_parameters:
            return 0.0
        hardware, share = self.hardware, self.hardware.efficiency
        weights = (spec.draft_parameters + self.shape.vocab_size * self.shape.hidden_size) * BF16
        memory = spec.draft_passes * weights / self.sizes.tensor_parallel / self._memory_rate
        flops = weights / BF16 * 2.0 * batch * spec.drafts / self.sizes.tensor_parallel
        compute = flops / (hardware.peak_flops.bf16 * share.compute)
        operations = 2 * spec.draft_layers if self.sizes.tensor_parallel > 1 else 0
        waiting = operations * hardware.link(self.sizes.tensor_parallel)[1]
        launches = DRAFT_KERNELS * spec.draft_layers * hardware.kernel_seconds
        return max(memory, compute) + spec.draft_passes * (waiting + launches)

    # -- the steady state -----------------------------------------------------------------------

    def point(self, batch: int, budget: int) -> ServePoint | None:
        """The steady state at a batch and a token budget; None where prefill can't keep up."""
        question, sizes = self._question, self.sizes
        new, accepted = question.new_tokens, self.accepted
        begun = batch * accepted / question.output_tokens
        room = budget - batch * self.verified
        if room < 1 or begun * new > MOST_LOAD * room:
            return None
        chunk = min(room, math.ceil(new * max(1.0, begun)))
        share = min(1.0, begun * new / chunk)
        load = begun * new / room
        decode, mixed = self.decode_seconds(batch), self.mixed_seconds(batch, chunk)
        step = (1.0 - share) * decode + share * mixed
        service = new / room * mixed
        mixed_time, busy = share * mixed / step, load * mixed / step
        residual = (mixed_time * max(service, mixed) + (1.0 - mixed_time) * decode) / 2.0
        wait = residual + busy**2 * service / (2.0 * (1.0 - busy))
        steps = max(1.0, new / chunk)
        whole = math.ceil(steps)
        own = (steps + busy * (whole - steps)) * (mixed - decode) + whole * decode
        return ServePoint(
            gpus=sizes.ranks,
            tensor_parallel=sizes.tensor_parallel,
            data_parallel=sizes.data_parallel,
            expert_parallel=sizes.expert_ranks,
            context_parallel=sizes.context_parallel,
            token_budget_tokens=budget,
            batch=batch,
            chunk_tokens=chunk,
            mixed_share=share,
            prefill_load=load,
            decode_step_seconds=decode,
            mixed_step_seconds=mixed,
            mean_step_seconds=step,
            ttft_seconds=wait + own,
            tpot_seconds=step / accepted,
            tokens_per_second_per_gpu=batch * accepted / (step * sizes.tensor_parallel),
            tokens_per_second_per_user=accepted / step,
            requests_per_second=sizes.data_parallel * begun / step,
        )


DRAFT_KERNELS = 14
"""Of one layer of a draft model, assumed as of an attention layer with a dense network behind it."""


def _states(shape: ModelShape, sizes: RankSizes, spec: Speculation | None) -> StateBytes:
    if spec is None:
        return state_bytes_of(shape, sizes)
    return state_bytes_of(shape, sizes, spec.drafts, spec.states)
