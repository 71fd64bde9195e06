"""``milepost plan disagg``: prefill and decode on machines of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from milepost.byte_counts import parse_bytes
from milepost.cli.option_groups import GroupedCommand, option_group
from milepost.cli.options import examples
from milepost.cli.plan.options import deployment_options, take_deployment
from milepost.cli.plan.outputs import finish, output_options, take_outputs
from milepost.cli.plan.quantities import bytes_a_second_of, seconds_of
from milepost.cli.trace_options import open_trace, take_trace_options, trace_options
from milepost.errors import ConfigError
from milepost.planner.disagg.question import STREAMING, DisaggQuestion

__all__ = ["disagg"]

_DEFAULTS = DisaggQuestion()

_prefill = option_group("The prefill side (the decode side is what is deployed)")
_requests = option_group("Requests")
_goal = option_group("Network, limits and size")
_money = option_group("Prices and losses")


def _limit(option: str, text: str | None) -> float:
    return 0.0 if text is None else seconds_of(option, text)


def _counts(text: str) -> tuple[int, int]:
    remote, comma, local = text.partition(",")
    if not (comma and remote.strip().isdecimal() and local.strip().isdecimal()):
        raise ConfigError(
            "--fleet must be two counts: instances of prefill hardware and of decode hardware, such as 4,8. "
            f"Given: {text!r:.60}."
        )
    return int(remote), int(local)


@click.command(
    cls=GroupedCommand,
    shared_heading="How a trace is read",
    epilog=examples(
        "milepost plan disagg --model kimi-k3 --hardware gb300",
        "milepost plan disagg --gpus 32 --tp 2 --dp 8 --prefill-tp 2 --prefill-dp 4 --tpot 50ms",
        "milepost plan disagg --prefill-hardware h200 --prefill-price 2.5 --decode-price 6 --spot-loss 0.05",
        "milepost plan disagg --lengths p50=8k,p90=32k,p99=128k --outputs 1k --rate 20 --link 12.5GB",
        "milepost plan disagg --prefill-hardware h200 --fleet 4,8 --link 12.5GB",
        "milepost plan disagg --trace trace.jsonl.gz --simulate 400GB",
        "milepost plan disagg --explain request_32768.sent_bytes",
    ),
)
@deployment_options
@_prefill("--prefill-hardware", metavar="NAME|PATH", default="", help="[default: the decode side's]")
@_prefill(
    "--decode-hardware", metavar="NAME|PATH", default="", help="The same as --hardware, to say both alike."
)
@_prefill("--prefill-tp", type=int, default=0, metavar="N", help="[default: the best of 1, 2, 4, 8, 16]")
@_prefill(
    "--prefill-dp",
    type=int,
    default=0,
    metavar="N",
    help="[default: the fewest groups that hold the weights]",
)
@_prefill(
    "--token-budget",
    type=int,
    default=_DEFAULTS.chunk_tokens,
    show_default=True,
    help="Most tokens of a prefill step.",
)
@_prefill(
    "--streaming",
    metavar="|".join(STREAMING),
    default=_DEFAULTS.streaming,
    show_default=True,
    help="How KV leaves while prefill runs.",
)
@_requests(
    "--lengths",
    metavar="TEXT",
    default=_DEFAULTS.lengths,
    show_default=True,
    help="Prompts: 8k, or percentiles such as p50=8k,p90=32k,p99=128k (k is 1,024; min= and max= cut).",
)
@_requests(
    "--outputs", metavar="TEXT", default=_DEFAULTS.outputs, show_default=True, help="The same of outputs."
)
@_requests(
    "--hit-rate",
    type=float,
    default=0.0,
    show_default=True,
    help="Share of each prompt that the prefill side has cached.",
)
@_requests(
    "--trace", type=click.Path(path_type=Path), metavar="FILE", help="Lengths of recorded requests instead."
)
@_requests(
    "--simulate",
    metavar="SIZE",
    help="With --trace: hits as a prefix cache of that size would have them; takes as long as a simulation.",
)
@_requests(
    "--snapshot-policy",
    metavar="NAMES",
    default=_DEFAULTS.snapshot_policy,
    show_default=True,
    help="Of the cache that is simulated.",
)
@_goal(
    "--slots",
    type=float,
    default=_DEFAULTS.slots,
    show_default=True,
    metavar="N",
    help="States that a running request takes of decode's memory.",
)
@_goal(
    "--network",
    metavar="BYTES/S",
    default="50GB",
    show_default=True,
    help="From one prefill instance to decode.",
)
@_goal("--link", metavar="BYTES/S", help="Between the sides in all.  [default: no limit]")
@_goal(
    "--tpot", metavar="TIME", default="50ms", show_default=True, help="Limit of a decode step: 50ms, 0.05."
)
@_goal("--ttft", metavar="TIME", help="Limit of wait, prefill and exposed transfer: 2, 2s.  [default: none]")
@_goal(
    "--ttft-percentile",
    type=float,
    default=_DEFAULTS.ttft_percentile,
    show_default=True,
    help="Of the requests by length, for which --ttft holds.",
)
@_goal(
    "--utilization",
    type=float,
    default=_DEFAULTS.utilization,
    show_default=True,
    help="Of prefill instances' time, at most.",
)
@_goal("--rate", type=float, metavar="N", help="Requests a second to serve.")
@_goal("--gpus", type=int, metavar="N", help="Devices in all, at most.")
@_goal(
    "--fleet",
    metavar="P,D",
    help="Instances of prefill and decode hardware: which prompts go where, and who decodes.",
)
@_goal(
    "--against",
    multiple=True,
    metavar="MODEL",
    help="Others to compare bytes with; may be repeated, or none.",
)
@_money("--prefill-price", type=float, default=0.0, metavar="PRICE", help="Of a device-hour.")
@_money("--decode-price", type=float, default=0.0, metavar="PRICE", help="Of a device-hour.")
@_money(
    "--spot-loss",
    type=float,
    default=0.0,
    metavar="SHARE",
    help="Of the prefill instances, lost within an hour.",
)
@_money(
    "--restart",
    type=float,
    default=_DEFAULTS.restart_seconds,
    show_default=True,
    metavar="SECONDS",
    help="Until a lost instance has been replaced and has its weights.",
)
@output_options
@trace_options
def disagg(**options: Any) -> None:  # noqa: ANN401  # checked where they are taken
    """Size prefill and decode on machines of their own.

    Bytes between them against models whose layers all are attention, the bandwidth that takes, how many
    prefill instances feed how many decode instances, cheaper or spot machines for prefill, and which
    requests are better prefilled where they decode.
    """
    from milepost.planner.disagg.planning import plan_disagg
    from milepost.planner.disagg.report import disagg_report

    outputs = take_outputs(options)
    how, path = take_trace_options(options), options["trace"]
    question = _question(options)
    plan = plan_disagg(question, None if path is None else open_trace(path, how))
    finish(plan, disagg_report(plan), outputs)


def _question(options: dict[str, Any]) -> DisaggQuestion:
    """The question that the options ask.

    Raises:
        ConfigError: a value that can't be read; others are the planner's to check.
    """
    if decode := options.pop("decode_hardware"):
        if options["hardware"] and options["hardware"] != decode:
            raise ConfigError(
                "--hardware and --decode-hardware are the same. Give one of them. "
                f"Given: {options['hardware']} and {decode}."
            )
        options["hardware"] = decode
    deployment = take_deployment(options)
    link, simulated, fleet = options["link"], options["simulate"], options["fleet"]
    against = options["against"]
    return DisaggQuestion(
        deployment=deployment,
        prefill_hardware=options["prefill_hardware"],
        prefill_tensor_parallel=options["prefill_tp"],
        prefill_data_parallel=options["prefill_dp"],
        lengths=options["lengths"],
        outputs=options["outputs"],
        hit_rate=options["hit_rate"],
        simulated_bytes=parse_bytes(simulated, name="--simulate") if simulated is not None else 0,
        snapshot_policy=options["snapshot_policy"],
        network_bytes_per_second=bytes_a_second_of("--network", options["network"]),
        link_bytes_per_second=bytes_a_second_of("--link", link) if link is not None else 0.0,
        slots=options["slots"],
        streaming=options["streaming"],
        chunk_tokens=options["token_budget"],
        tpot_limit_seconds=_limit("--tpot", options["tpot"]),
        ttft_limit_seconds=_limit("--ttft", options["ttft"]),
        ttft_percentile=options["ttft_percentile"],
        utilization=options["utilization"],
        requests_per_second=_above_zero("--rate", options["rate"]),
        devices=int(_above_zero("--gpus", options["gpus"])),
        prefill_price=options["prefill_price"],
        decode_price=options["decode_price"],
        loss_rate_per_hour=options["spot_loss"],
        restart_seconds=options["restart"],
        fleet=_counts(fleet) if fleet is not None else None,
        against=None if not against else tuple(name for name in against if name != "none"),
    )


def _above_zero(option: str, value: float | None) -> float:
    """A number that was given, for which 0 does not stand for anything; 0 where it was not."""
    if value is None:
        return 0.0
    if not value > 0:
        raise ConfigError(f"{option} must be above 0; leave it out for none. Given: {value:g}.")
    return value
