"""What a disaggregation plan is asked."""

from __future__ import annotations

import math

import msgspec

from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.planner.deployment import Deployment
from milepost.planner.limits import check_within

__all__ = ["STREAMING", "DisaggQuestion", "check_question"]

STREAMING = ("layers", "chunks", "whole")
"""How KV may leave while prefill runs; see `milepost.planner.disagg.streaming`."""

MOST_SECONDS = 1e6
MOST_RATE = 1e9
MOST_PRICE = 1e6
LEAST_CHUNK = 512
"""Tokens of a prefill step, at least: smaller ones leave devices idle, and a long prompt has too many."""
MOST_INSTANCES = 256
MOST_DEVICES = 100_000
_BITS = 1e6


class DisaggQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Prefill here, decode there. Zeros stand for what is not asked, or is chosen.

    Attributes:
        deployment: the model, its dtypes, and the decode side: its hardware and ranks.
        prefill_hardware: of the prefill side; "" for the decode side's.
        prefill_tensor_parallel: of a prefill instance; 0 for the best of a few.
        prefill_data_parallel: of a prefill instance; 0 for the fewest groups that hold the weights.
        lengths: prompts, such as "8k" or "p50=8k,p90=32k".
        outputs: the same of outputs.
        hit_rate: share of each prompt that the prefill side has cached.
        simulated_bytes: memory of the prefix cache that is simulated on a trace for its hits; 0 for none.
        snapshot_policy: of that cache.
        network_bytes_per_second: from one prefill instance to the decode side.
        link_bytes_per_second: between all of the two sides together; 0 for no limit.
        streaming: one of `STREAMING`.
        chunk_tokens: most tokens of a prompt that one step computes.
        slots: states that a running request takes of the decode side's memory; engines that keep snapshots
            of running requests charge more than the one.
        tpot_limit_seconds: of a decode step.
        ttft_limit_seconds: of the request at `ttft_percentile`; 0 for no limit.
        ttft_percentile: of the requests by uncached tokens.
        utilization: of a prefill instance's time, at most.
        requests_per_second: to be served; 0 for a ratio alone.
        devices: to be used, at most; 0 for a ratio alone.
        prefill_price: of a device-hour; 0 for no costs.
        decode_price: of a device-hour.
        loss_rate_per_hour: share of the prefill instances that are lost within an hour.
        restart_seconds: until a lost instance is replaced and has loaded the weights.
        fleet: (instances of prefill hardware, instances of decode hardware): who prefills where, and how
            many of the latter prefill; None for not asked.
        against: other models to compare bytes and KV throughput with; None for those of `published.EXPORTS`.
    """

    deployment: Deployment = Deployment()
    prefill_hardware: str = ""
    prefill_tensor_parallel: int = 0
    prefill_data_parallel: int = 0
    lengths: str = "8k"
    outputs: str = "1k"
    hit_rate: float = 0.0
    simulated_bytes: int = 0
    snapshot_policy: str = "adaptive"
    network_bytes_per_second: float = 50e9
    link_bytes_per_second: float = 0.0
    streaming: str = "layers"
    chunk_tokens: int = 8192
    slots: float = 1.0
    tpot_limit_seconds: float = 0.05
    ttft_limit_seconds: float = 0.0
    ttft_percentile: float = 90.0
    utilization: float = 0.9
    requests_per_second: float = 0.0
    devices: int = 0
    prefill_price: float = 0.0
    decode_price: float = 0.0
    loss_rate_per_hour: float = 0.0
    restart_seconds: float = 300.0
    fleet: tuple[int, int] | None = None
    against: tuple[str, ...] | None = None


def check_question(question: DisaggQuestion) -> None:
    """Refuse what no plan can be made for.

    Raises:
        ConfigError: a number outside its range, or an unknown word.
    """
    ask = question
    _range("--network", ask.network_bytes_per_second, _BITS, 1e15, "bytes a second, such as 50GB")
    if ask.link_bytes_per_second:
        _range("--link", ask.link_bytes_per_second, _BITS, 1e15, "bytes a second, such as 12.5GB")
    if ask.streaming not in STREAMING:
        raise ConfigError(one_of("--streaming", ask.streaming, STREAMING))
    _range("--slots", ask.slots, 1, 1e6, "states of a running request")
    _range("--tpot", ask.tpot_limit_seconds, 1e-6, MOST_SECONDS, "seconds")
    if ask.ttft_limit_seconds:
        _range("--ttft", ask.ttft_limit_seconds, 1e-6, MOST_SECONDS, "seconds")
    _range("--ttft-percentile", ask.ttft_percentile, 1, 99.99, "a percentile")
    _range("--utilization", ask.utilization, 0.01, 1.0, "a share")
    if ask.requests_per_second:
        _range("--rate", ask.requests_per_second, 1e-9, MOST_RATE, "requests a second")
    for name, price in (("--prefill-price", ask.prefill_price), ("--decode-price", ask.decode_price)):
        _range(name, price, 0, MOST_PRICE, "a price of a device-hour")
    _check_losses(ask)
    _check_counts(ask)
    if not 0 <= ask.hit_rate < 1:
        raise ConfigError(f"--hit-rate must be a share, at least 0 and below 1. Given: {ask.hit_rate}.")


def _check_losses(ask: DisaggQuestion) -> None:
    if not 0 <= ask.loss_rate_per_hour < 1:
        raise ConfigError(
            "--spot-loss must be the share of instances that are lost within an hour, at least 0 and below "
            f"1. Given: {ask.loss_rate_per_hour}."
        )
    _range("--restart", ask.restart_seconds, 0, MOST_SECONDS, "seconds")


def _check_counts(ask: DisaggQuestion) -> None:
    for name, value, least, most in (
        ("--prefill-tp", ask.prefill_tensor_parallel, 0, MOST_DEVICES),
        ("--prefill-dp", ask.prefill_data_parallel, 0, MOST_DEVICES),
        ("--token-budget", ask.chunk_tokens, LEAST_CHUNK, 1 << 24),
        ("--gpus", ask.devices, 0, MOST_DEVICES),
        ("--simulate", ask.simulated_bytes, 0, 1 << 60),
    ):
        check_within(name, value, least, most)
    if ask.devices and ask.requests_per_second:
        raise ConfigError("--rate and --gpus both say how large the deployment is. Give one of them.")
    if ask.fleet is not None:
        remote, local = ask.fleet
        if not (1 <= remote <= MOST_INSTANCES and 2 <= local <= MOST_INSTANCES):
            raise ConfigError(
                f"--fleet must name 1 to {MOST_INSTANCES:,} instances of prefill hardware and 2 to "
                f"{MOST_INSTANCES:,} of decode hardware, such as 4,8. Given: {remote},{local}."
            )
    if ask.simulated_bytes and ask.hit_rate:
        raise ConfigError("--simulate and --hit-rate both say what is cached. Give one of them.")


def _range(name: str, value: float, least: float, most: float, what: str) -> None:
    if not (math.isfinite(value) and least <= value <= most):
        raise ConfigError(f"{name} must be {what}, from {least:g} to {most:g}. Given: {value}.")
