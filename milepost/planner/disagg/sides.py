"""The two sides of a plan: their hardware, the instance of each, and the prefill instances to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from milepost.errors import ConfigError
from milepost.planner.deployment import KV_DTYPES, STATE_DTYPES, check_ranks, itemsize
from milepost.planner.disagg.instances import Instance, arrangements
from milepost.planner.disagg.lengths import Mix
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.rates import (
    DecodeRate,
    PrefillRate,
    RequestSizes,
    decode_rate,
    prefill_rate,
    sizes_of,
)
from milepost.shapes.names import find_shape
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.by_name import MOST_RANKS, default_hardware
from milepost.sim.cost.hardware import Hardware, find_hardware
from milepost.sim.cost.part_work import RankSizes

__all__ = ["Sides", "choose_prefill", "decode_side", "prefill_instances", "read_sides"]

DECODE_STEP_TOKENS = 256
"""Tokens of a decode step that activations have room for."""


class Sides(NamedTuple):
    """What is planned with."""

    model: str
    shape: ModelShape
    sizes: RequestSizes
    prefill_hardware: Hardware
    decode_hardware: Hardware


def read_sides(ask: DisaggQuestion) -> Sides:
    """The model and the hardware of a question.

    Raises:
        ConfigError: unknown names, or ranks that can't divide the model.
        CheckpointError: a config that can't be read.
    """
    deployment = ask.deployment
    name, shape = find_shape(deployment.model)
    kv = itemsize("--kv-dtype", deployment.kv_dtype, KV_DTYPES)
    state = itemsize("--state-dtype", deployment.state_dtype, STATE_DTYPES)
    check_ranks(shape, deployment)
    if ask.prefill_tensor_parallel:
        prefill = msgspec.structs.replace(
            deployment, tensor_parallel=ask.prefill_tensor_parallel, context_parallel=1
        )
        try:
            check_ranks(shape, prefill)
        except ConfigError as error:
            raise ConfigError(f"On the prefill side, {error}") from None
    decode_hardware = find_hardware(deployment.hardware or default_hardware(shape))
    return Sides(
        model=name,
        shape=shape,
        sizes=sizes_of(shape, kv, state),
        prefill_hardware=find_hardware(ask.prefill_hardware) if ask.prefill_hardware else decode_hardware,
        decode_hardware=decode_hardware,
    )


def decode_side(ask: DisaggQuestion, sides: Sides, mix: Mix) -> DecodeRate:
    """The decode side's instance; where its groups are not given, as many as leave room for a request.

    Raises:
        ConfigError: the weights or one request don't fit, or the TPOT limit can't be met.
    """
    deployment, hardware = ask.deployment, sides.decode_hardware
    (sizes,) = arrangements(
        sides.shape,
        hardware,
        deployment.tensor_parallel,
        deployment.data_parallel,
        expert_parallel=deployment.expert_parallel,
        context_parallel=deployment.context_parallel,
        kv_itemsize=KV_DTYPES[deployment.kv_dtype],
        state_itemsize=STATE_DTYPES[deployment.state_dtype],
    )
    while True:
        instance = _decode_instance(ask, sides.shape, hardware, sizes)
        more = msgspec.structs.replace(sizes, data_parallel=2 * sizes.data_parallel)
        roomy = instance.largest_batch(mix.held_tokens, ask.slots) >= 1
        if roomy or deployment.data_parallel or more.ranks > MOST_RANKS:
            return decode_rate(instance, mix, ask)
        sizes = more


def _decode_instance(
    ask: DisaggQuestion, shape: ModelShape, hardware: Hardware, sizes: RankSizes
) -> Instance:
    return Instance(
        shape,
        hardware,
        sizes,
        memory_share=ask.deployment.memory_share,
        chunk_tokens=ask.chunk_tokens,
        tokens_per_step=DECODE_STEP_TOKENS,
    )


def prefill_instances(ask: DisaggQuestion, sides: Sides, hardware: Hardware) -> list[Instance]:
    """The prefill instances that are looked at on some hardware.

    Raises:
        ConfigError: none holds the weights.
    """
    deployment = ask.deployment
    return [
        Instance(
            sides.shape,
            hardware,
            sizes,
            memory_share=deployment.memory_share,
            chunk_tokens=ask.chunk_tokens,
        )
        for sizes in arrangements(
            sides.shape,
            hardware,
            ask.prefill_tensor_parallel,
            ask.prefill_data_parallel,
            kv_itemsize=KV_DTYPES[deployment.kv_dtype],
            state_itemsize=STATE_DTYPES[deployment.state_dtype],
        )
    ]


class Looked(NamedTuple):
    """A prefill instance that was looked at, and why it can't be used ("" if it can)."""

    rate: PrefillRate
    refused: str


def choose_prefill(
    ask: DisaggQuestion, sides: Sides, mix: Mix, instances: Sequence[Instance]
) -> tuple[PrefillRate, list[Looked]]:
    """The instance that takes most requests a device, and all that were looked at.

    Raises:
        ConfigError: none has room for the longest prompt, or none meets the TTFT limit; with the best.
    """
    longest = max(share.prompt_tokens for share in mix.shares)
    looked = []
    for instance in instances:
        rate = prefill_rate(instance, sides.sizes, mix, ask)
        refused = ""
        if instance.largest_batch(longest) < 1:
            refused = f"no room for a prompt of {longest:,} tokens beside the weights"
        elif rate.utilization <= 0.0:
            refused = f"TTFT of {rate.ttft_alone_seconds:.3g} s without any wait"
        looked.append(Looked(rate, refused))
    usable = [one.rate for one in looked if not one.refused]
    if not usable:
        raise ConfigError(_none_usable(ask, looked, longest))
    best = max(usable, key=lambda rate: rate.requests_per_second / rate.instance.devices)
    return best, looked


def _none_usable(ask: DisaggQuestion, looked: Sequence[Looked], longest: int) -> str:
    late = [one.rate for one in looked if one.rate.instance.largest_batch(longest) >= 1]
    if late:
        best = min(late, key=lambda rate: rate.ttft_alone_seconds)
        where = f"{best.instance.name} of {best.instance.hardware.name}"
        return (
            f"--ttft must be above {best.ttft_alone_seconds:.4g} s, what prefill and transfer of the "
            f"request at percentile {ask.ttft_percentile:g} ({best.late.uncached_tokens:,} uncached tokens) "
            f"take at best, on {where}. Given: {ask.ttft_limit_seconds:g} s."
        )
    one = max((one.rate.instance for one in looked), key=lambda instance: instance.free_bytes)
    need = one.request_bytes(longest)
    return (
        f"A prompt of {longest:,} tokens must fit a prefill device beside the weights. It takes {need:,.0f} "
        f"bytes there, free are {max(0, one.free_bytes):,} ({one.name} on {one.hardware.name}). Raise "
        "--prefill-dp or --prefill-tp, or take --kv-dtype fp8."
    )
