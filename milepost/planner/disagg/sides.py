"""The two sides of a plan: their hardware, the instance of each, and the prefill instances to choose from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from milepost.errors import ConfigError
from milepost.planner.deployment import check_ranks
from milepost.planner.disagg.instances import Instance, arrangements
from milepost.planner.disagg.lengths import Mix
from milepost.planner.disagg.question import DisaggQuestion
from milepost.planner.disagg.rates import (
    DecodeRate,
    PrefillRate,
    RequestSizes,
    decode_rate,
    no_room,
    prefill_rate,
    sizes_of,
)
from milepost.shapes.names import find_shape
from milepost.shapes.shape import ModelShape
from milepost.sim.cost.by_name import default_hardware
from milepost.sim.cost.hardware import Hardware, find_hardware

__all__ = ["Looked", "Sides", "choose_prefill", "decode_side", "look", "prefill_instances", "read_sides"]

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
    sizes = sizes_of(shape, deployment.kv_itemsize, deployment.state_itemsize)
    check_ranks(shape, deployment)
    if ask.prefill_tensor_parallel:
        prefill = msgspec.structs.replace(
            deployment,
            tensor_parallel=ask.prefill_tensor_parallel,
            data_parallel=ask.prefill_data_parallel,
            expert_parallel=0,
            context_parallel=1,
        )
        try:
            check_ranks(shape, prefill)
        except ConfigError as error:
            raise ConfigError(f"On the prefill side, {error}") from None
    decode_hardware = find_hardware(deployment.hardware or default_hardware(shape))
    return Sides(
        model=name,
        shape=shape,
        sizes=sizes,
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
        kv_itemsize=deployment.kv_itemsize,
        state_itemsize=deployment.state_itemsize,
    )
    instance = Instance(
        sides.shape,
        hardware,
        sizes,
        memory_share=deployment.memory_share,
        chunk_tokens=ask.chunk_tokens,
        tokens_per_step=DECODE_STEP_TOKENS,
    )
    if not deployment.data_parallel:
        instance = instance.roomy(mix.held_tokens, ask.slots) or instance
    return decode_rate(instance, mix, ask)


def prefill_instances(
    ask: DisaggQuestion, sides: Sides, hardware: Hardware, longest_tokens: int
) -> list[Instance]:
    """The prefill instances that are looked at on some hardware, with room for the longest prompt if any has.

    Raises:
        ConfigError: none holds the weights.
    """
    deployment = ask.deployment
    found = [
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
            kv_itemsize=deployment.kv_itemsize,
            state_itemsize=deployment.state_itemsize,
        )
    ]
    if ask.prefill_data_parallel:
        return found
    return [instance.roomy(longest_tokens) or instance for instance in found]


class Looked(NamedTuple):
    """A prefill instance that was looked at, and why it can't be used ("" if it can)."""

    rate: PrefillRate
    refused: str


def look(instance: Instance, sides: Sides, mix: Mix, ask: DisaggQuestion) -> Looked:
    """What an instance takes, and whether it can be used."""
    rate, longest = prefill_rate(instance, sides.sizes, mix, ask), mix.longest_tokens
    if instance.largest_batch(longest) < 1:
        return Looked(rate, f"no room for {longest:,} tokens")
    if rate.utilization <= 0.0:
        return Looked(rate, f"TTFT {rate.ttft_alone_seconds:.3g} s")
    return Looked(rate, "")


def choose_prefill(
    ask: DisaggQuestion, sides: Sides, mix: Mix, instances: Sequence[Instance]
) -> tuple[PrefillRate, list[Looked]]:
    """The instance that takes most requests a device, and all that were looked at.

    Raises:
        ConfigError: none has room for the longest prompt, or none meets the TTFT limit; with the best.
    """
    longest = mix.longest_tokens
    looked = [look(instance, sides, mix, ask) for instance in instances]
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
    roomiest = max((one.rate.instance for one in looked), key=lambda instance: instance.free_bytes)
    return no_room(roomiest, "prefill", longest)
