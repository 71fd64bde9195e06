"""Requests a second of one prefill or decode instance under the limits; formulas in `balance`."""

from __future__ import annotations

import math
from typing import NamedTuple

from milepost.errors import ConfigError
from milepost.planner.disagg.balance import utilization_within
from milepost.planner.disagg.instances import Instance
from milepost.planner.disagg.lengths import Mix, Share
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.streaming import Exposed, transfer_exposed
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.part_work import RankSizes, StepParts

__all__ = [
    "DecodeRate",
    "PrefillRate",
    "RequestSizes",
    "decode_rate",
    "exposed_of",
    "no_room",
    "prefill_rate",
    "sizes_of",
]


class RequestSizes(NamedTuple):
    """Bytes of one request, each once however many ranks hold them."""

    state_bytes: int
    kv_bytes_per_token: int
    all_attention_bytes_per_token: int
    layers: int

    def sent(self, tokens: float) -> float:
        """What goes from prefill to decode behind a prompt: the state, and every token's KV."""
        return self.state_bytes + tokens * self.kv_bytes_per_token


def sizes_of(shape: ModelShape, kv_itemsize: int, state_itemsize: int) -> RequestSizes:
    """Of a model, whole."""
    parts = StepParts(shape, RankSizes(kv_itemsize=kv_itemsize, state_itemsize=state_itemsize))
    row = shape.attention.row_dim * kv_itemsize if shape.attention else 0
    return RequestSizes(
        state_bytes=round(parts.state_bytes),
        kv_bytes_per_token=shape.attention_layers * row,
        all_attention_bytes_per_token=(shape.recurrent_layers + shape.attention_layers) * row,
        layers=max(1, shape.blocks),
    )


class PrefillRate(NamedTuple):
    """One prefill instance.

    Attributes:
        instance: which.
        filled_seconds: mean of what a request takes of a busy group.
        squared_seconds: mean of its square.
        late: the request at the TTFT's percentile.
        late_seconds: its prefill, alone.
        late_exposed_seconds: its transfer, as far as it is waited for.
        utilization: of its groups' time, at most.
        requests_per_second: at most.
        bound: what keeps it from more: "prefill", "TTFT limit" or "network".
    """

    instance: Instance
    filled_seconds: float
    squared_seconds: float
    late: Share
    late_seconds: float
    late_exposed_seconds: float
    utilization: float
    requests_per_second: float
    bound: str

    @property
    def residual_seconds(self) -> float:
        """What is left in the mean of the prefill that an arriving request finds."""
        return self.squared_seconds / (2.0 * self.filled_seconds)

    @property
    def ttft_alone_seconds(self) -> float:
        """Without any wait: the least that the limit can be."""
        return self.late_seconds + self.late_exposed_seconds


def exposed_of(instance: Instance, sizes: RequestSizes, share: Share, bytes_per_second: float) -> Exposed:
    """What a request waits for of its transfer."""
    return transfer_exposed(
        instance.chunks(share.uncached_tokens, share.cached_tokens),
        sizes.state_bytes,
        share.cached_tokens * sizes.kv_bytes_per_token,
        sizes.layers,
        bytes_per_second,
    )


def prefill_rate(instance: Instance, sizes: RequestSizes, mix: Mix, ask: DisaggQuestion) -> PrefillRate:
    """What a prefill instance takes; `PrefillRate.utilization` is 0 where the TTFT limit can't be met."""
    filled = [
        (share.weight, instance.filled_seconds(share.uncached_tokens, share.cached_tokens))
        for share in mix.shares
    ]
    mean = math.fsum(weight * seconds for weight, seconds in filled)
    square = math.fsum(weight * seconds * seconds for weight, seconds in filled)
    late = mix.at(ask.ttft_percentile / 100)
    alone = instance.prefill_seconds(late.uncached_tokens, late.cached_tokens)
    waited = exposed_of(instance, sizes, late, ask.network_bytes_per_second).by(ask.streaming)
    utilization, bound = ask.utilization, "prefill"
    if ask.ttft_limit_seconds:
        within = utilization_within(
            ask.ttft_limit_seconds - alone - waited, instance.groups, square / (2 * mean)
        )
        if within < utilization:
            utilization, bound = within, "TTFT limit"
    requests = instance.groups * utilization / mean
    by_network = ask.network_bytes_per_second / sizes.sent(mix.prompt_tokens)
    if by_network < requests:
        requests, bound = by_network, "network"
    return PrefillRate(
        instance=instance,
        filled_seconds=mean,
        squared_seconds=square,
        late=late,
        late_seconds=alone,
        late_exposed_seconds=waited,
        utilization=utilization,
        requests_per_second=requests,
        bound=bound,
    )


def no_room(instance: Instance, side: str, tokens: float, slots: float = 1.0) -> str:
    """The message that a request does not fit an instance, with the fewest groups that hold it."""
    option = "" if side == "decode" else "prefill-"
    wider = instance.roomy(tokens, slots)
    more = f"Raise --{option}tp, or take --kv-dtype fp8 or hardware with more memory."
    if wider is not None:
        more = f"--{option}dp {wider.groups}, {wider.devices} devices, is the least that has room."
    return (
        f"A request of {tokens:,.0f} tokens must fit a {side} device beside the weights. It takes "
        f"{instance.request_bytes(tokens, slots):,.0f} bytes there, free are {max(0, instance.free_bytes):,} "
        f"({instance.name} on {instance.hardware.name}). {more}"
    )


class DecodeRate(NamedTuple):
    """One decode instance.

    Attributes:
        instance: which.
        batch_by_memory: requests that a group's ranks hold.
        batch_by_tpot: requests whose step meets the limit.
        batch: the smaller of both.
        step_seconds: of a step with that batch.
        requests_per_second: of the instance.
        bound: what keeps it from more: "TPOT limit" or "memory".
    """

    instance: Instance
    batch_by_memory: int
    batch_by_tpot: int
    batch: int
    step_seconds: float
    requests_per_second: float
    bound: str


def decode_rate(instance: Instance, mix: Mix, ask: DisaggQuestion) -> DecodeRate:
    """What a decode instance takes.

    Raises:
        ConfigError: not one request fits, or meets the limit.
    """
    by_memory = instance.largest_batch(mix.held_tokens, ask.slots)
    if by_memory < 1:
        raise ConfigError(no_room(instance, "decode", mix.held_tokens, ask.slots))
    context = mix.decode_context_tokens
    by_tpot = instance.batch_within(context, ask.tpot_limit_seconds, by_memory + 1)
    if by_tpot < 1:
        best = instance.step_seconds(1, context)
        raise ConfigError(
            f"--tpot must be at least {best:.4g} s, what one request alone takes at {context:,.0f} "
            f"tokens of context on {instance.name} of {instance.hardware.name}. "
            f"Given: {ask.tpot_limit_seconds:g} s."
        )
    batch = min(by_memory, by_tpot)
    step = instance.step_seconds(batch, context)
    return DecodeRate(
        instance=instance,
        batch_by_memory=by_memory,
        batch_by_tpot=by_tpot,
        batch=batch,
        step_seconds=step,
        requests_per_second=instance.groups * batch / (step * mix.output_tokens),
        bound="memory" if by_memory < by_tpot else "TPOT limit",
    )
