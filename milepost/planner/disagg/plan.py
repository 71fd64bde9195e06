"""What a disaggregation plan answers: plain data, every number with its unit in its name."""

from __future__ import annotations

import msgspec

from milepost.planner.disagg.offload import Fleet
from milepost.planner.disagg.spot import SpotLoss
from milepost.planner.worksheet import Derivation

__all__ = [
    "Balance",
    "Colocated",
    "DisaggPlan",
    "FleetPlan",
    "MixFacts",
    "ModelExport",
    "PrefillChoice",
    "PublishedExport",
    "RemoteRule",
    "RequestTransfer",
    "SideFacts",
    "SpotPlan",
]


class SideFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One instance of a side.

    Attributes:
        hardware: its devices.
        tensor_parallel: ranks that share the heads.
        data_parallel: such groups.
        devices: of the instance.
        rank_weight_bytes: of weights on each device.
        rank_free_bytes: of each device, for states and KV.
        price_per_device_hour: None where none is given.
    """

    hardware: str
    tensor_parallel: int
    data_parallel: int
    devices: int
    rank_weight_bytes: float
    rank_free_bytes: float
    price_per_device_hour: float | None


class MixFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The requests.

    Attributes:
        source: where their lengths are from.
        prompt_tokens: mean.
        cached_tokens: mean, cached at the prefill side.
        output_tokens: mean.
        decode_context_tokens: mean context of a decode step.
        held_tokens: mean length at the end, over all decode steps.
        sent_bytes: mean, from prefill to decode.
    """

    source: str
    prompt_tokens: float
    cached_tokens: float
    output_tokens: float
    decode_context_tokens: float
    held_tokens: float
    sent_bytes: float


class RequestTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """One length, cold and alone.

    Attributes:
        prompt_tokens: the length.
        state_bytes: of them, the state's.
        sent_bytes: from prefill to decode: state and KV.
        all_attention_bytes: of a model of the same depth whose layers all are attention.
        transfer_seconds: at the network's bandwidth.
        prefill_seconds: alone on one instance.
        kv_bytes_per_second: that an instance exports which does nothing but such prompts.
        exposed_whole_seconds: of the transfer, waited for when it begins after prefill.
        exposed_chunk_wise_seconds: the same when each chunk's KV leaves as it is computed.
        exposed_layer_wise_seconds: the same when each layer's does.
        fits_model: whether the model reads prompts of this length.
    """

    prompt_tokens: int
    state_bytes: int
    sent_bytes: int
    all_attention_bytes: int
    transfer_seconds: float
    prefill_seconds: float
    kv_bytes_per_second: float
    exposed_whole_seconds: float
    exposed_chunk_wise_seconds: float
    exposed_layer_wise_seconds: float
    fits_model: bool


class ModelExport(msgspec.Struct, frozen=True, kw_only=True):
    """What another model exports on the prefill side's hardware.

    Attributes:
        model: its name.
        prompt_tokens: the length.
        tensor_parallel: ranks that share the heads.
        devices: of an instance.
        sent_bytes: a request.
        prefill_seconds: alone.
        kv_bytes_per_second: of an instance.
    """

    model: str
    prompt_tokens: int
    tensor_parallel: int
    devices: int
    sent_bytes: int
    prefill_seconds: float
    kv_bytes_per_second: float


class PublishedExport(msgspec.Struct, frozen=True, kw_only=True):
    """A published KV throughput beside ours.

    Attributes:
        model: its name there.
        shape: its name here.
        prompt_tokens: the length.
        published_bytes_per_second: of 8 H200.
        predicted_bytes_per_second: of 8 H200 by the roofline.
        ratio: predicted over published.
        with_overhead_ratio: the same with the published engine's overhead, fitted to the rows of 1k tokens.
        published_prefill_seconds: that our bytes and the published throughput come to.
        predicted_prefill_seconds: by the roofline.
    """

    model: str
    shape: str
    prompt_tokens: int
    published_bytes_per_second: float
    predicted_bytes_per_second: float
    ratio: float
    with_overhead_ratio: float
    published_prefill_seconds: float
    predicted_prefill_seconds: float


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """How many of each, and what they serve.

    Attributes:
        prefill_instances: of the prefill side.
        decode_instances: of the decode side.
        devices: of both.
        prefill_per_decode_ratio: prefill instances that one decode instance keeps busy.
        prefill_requests_per_second: of one prefill instance, at most.
        decode_requests_per_second: of one decode instance, at most.
        requests_per_second: of the whole.
        output_tokens_per_second: of the whole.
        output_tokens_per_second_per_device: of the whole, by all devices.
        batch_per_group: requests that a decode group runs at once.
        tpot_seconds: of a decode step with that batch.
        prefill_busy_share: share of the prefill instances' time.
        wait_seconds: mean, before prefill; infinite without any room.
        ttft_seconds: of the request at the percentile: wait, prefill and exposed transfer.
        ttft_percentile: of the requests by uncached tokens, whose TTFT it is.
        sent_bytes_per_second: between the sides.
        fits_link: whether the link between them suffices for that; true without a limit.
        sent_bytes_per_second_per_prefill_instance: from each.
        cost_per_million_output_tokens: in the currency of the prices; None without.
        bound: what keeps it from more.
    """

    prefill_instances: int
    decode_instances: int
    devices: int
    prefill_per_decode_ratio: float
    prefill_requests_per_second: float
    decode_requests_per_second: float
    requests_per_second: float
    output_tokens_per_second: float
    output_tokens_per_second_per_device: float
    batch_per_group: int
    tpot_seconds: float
    prefill_busy_share: float
    wait_seconds: float
    ttft_seconds: float
    ttft_percentile: float
    sent_bytes_per_second: float
    fits_link: bool
    sent_bytes_per_second_per_prefill_instance: float
    cost_per_million_output_tokens: float | None
    bound: str


class PrefillChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One way to prefill that was looked at.

    Attributes:
        hardware: its devices.
        tensor_parallel: ranks that share the heads.
        data_parallel: such groups.
        devices: of an instance.
        prefill_seconds: of the request at the percentile, alone.
        requests_per_second_per_device: at most.
        output_tokens_per_second_per_device: of the whole with this prefill side, balanced.
        cost_per_million_output_tokens: None without prices, or where it can't be used.
        even_price_per_device_hour: at which its prefills cost what the decode side's hardware would take for
            them; None without prices.
        refused: why it can't be used; "" if it can.
    """

    hardware: str
    tensor_parallel: int
    data_parallel: int
    devices: int
    prefill_seconds: float
    requests_per_second_per_device: float
    output_tokens_per_second_per_device: float
    cost_per_million_output_tokens: float | None
    even_price_per_device_hour: float | None
    refused: str = ""


class Colocated(msgspec.Struct, frozen=True, kw_only=True):
    """The decode side's instance doing both, within the same TPOT limit and without one of TTFT.

    Attributes:
        requests_per_second: of one instance.
        output_tokens_per_second_per_device: of it.
        batch_per_group: that a group runs at once.
        gain_ratio: of disaggregation, tokens a second of a device over this one's.
    """

    requests_per_second: float
    output_tokens_per_second_per_device: float
    batch_per_group: int
    gain_ratio: float


class RemoteRule(msgspec.Struct, frozen=True, kw_only=True):
    """When a request is better prefilled elsewhere.

    Attributes:
        batch: others that run beside it.
        own_threshold_tokens: uncached tokens from which on the request itself has its first token sooner when
            prefill is remote; None if it has for none up to `longest_tokens`.
        threshold_tokens: the same of the waiting of all, the others beside it, too.
        longest_tokens: that were looked at.
        local_seconds: at the threshold, from arrival to the first token.
        local_delay_seconds: by which each of the others is late then.
        remote_seconds: at the threshold: queue, prefill, exposed transfer.
        remote_share: of the mix's requests, above the threshold.
        link_threshold_tokens: the least at which what is sent at the asked rate fits the link; None without
            a rate and a link.
        link_share: of the requests, above that one.
    """

    batch: int
    own_threshold_tokens: int | None
    threshold_tokens: int | None
    longest_tokens: int
    local_seconds: float
    local_delay_seconds: float
    remote_seconds: float
    remote_share: float
    link_threshold_tokens: int | None = None
    link_share: float = 0.0


class SpotPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Prefill instances that may be lost.

    Attributes:
        loss: what losses come to.
        needed_instances: without losses, not rounded.
        instances: with losses, whole ones.
        extra_instances: more than without losses.
        redone_tokens_per_second: uncached tokens that are computed again.
    """

    loss: SpotLoss
    needed_instances: float
    instances: int
    extra_instances: int
    redone_tokens_per_second: float


class FleetPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet of two kinds of hardware, used in three ways.

    Attributes:
        offloaded: long prompts remote, short ones local.
        all_remote: every prompt remote.
        local_only: as many devices, all of the decode side's hardware.
        gain_ratio: of `offloaded` over `local_only`, requests a second.
        naive_gain_ratio: of `all_remote` over `local_only`.
    """

    offloaded: Fleet
    all_remote: Fleet
    local_only: Fleet
    gain_ratio: float
    naive_gain_ratio: float


class DisaggPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The whole answer.

    Attributes:
        model: its name.
        prefill: an instance of the prefill side.
        decode: an instance of the decode side.
        mix: the requests.
        network_bytes_per_second: from one prefill instance.
        transfers: by length.
        other_models: what they export at 32k.
        published: KV throughputs beside ours, for models that are known here.
        balance: how many of each.
        colocated: the same work without separation.
        choices: prefill sides that were looked at.
        remote: when a request is prefilled elsewhere.
        spot: losses; None without.
        fleet: None where none was asked about.
        derivations: of every number.
        notes: what a reader must know.
    """

    model: str
    prefill: SideFacts
    decode: SideFacts
    mix: MixFacts
    network_bytes_per_second: float
    transfers: tuple[RequestTransfer, ...]
    other_models: tuple[ModelExport, ...]
    published: tuple[PublishedExport, ...]
    balance: Balance
    colocated: Colocated
    choices: tuple[PrefillChoice, ...]
    remote: RemoteRule
    spot: SpotPlan | None
    fleet: FleetPlan | None
    derivations: tuple[Derivation, ...]
    notes: tuple[str, ...]
