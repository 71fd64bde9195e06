"""``milepost plan moe``: the expert parallel degree, and what moves and overlaps in a layer of experts."""

from __future__ import annotations

from typing import Any

import click

from milepost.cli.option_groups import GroupedCommand, option_group
from milepost.cli.options import examples
from milepost.cli.plan.options import deployment_options, take_deployment
from milepost.cli.plan.outputs import finish, output_options, take_outputs
from milepost.planner.moe.question import ITEM_BYTES, PLACEMENTS, SENDS, MoeQuestion

__all__ = ["moe"]

_DEFAULTS = MoeQuestion()
_step = option_group("The step")
_exchange = option_group("Between ranks")
_load = option_group("Load of the experts")


@click.command(
    cls=GroupedCommand,
    epilog=examples(
        "milepost plan moe --model kimi-k3 --hardware gb300 --dp 32",
        "milepost plan moe --tp 8 --decode-tokens 16",
        "milepost plan moe --model kimi-linear --hardware h200 --dp 8 --load 'zipf(0.5)'",
        "milepost plan moe --dp 32 --load counts.json --placement replicated --html moe.html",
        "milepost plan moe --explain token_layer_bytes",
    ),
)
@deployment_options
@_step(
    "--decode-tokens",
    type=int,
    default=_DEFAULTS.decode_tokens,
    show_default=True,
    metavar="N",
    help="Tokens that a group of --tp ranks computes in a decoding step.",
)
@_step(
    "--prefill-tokens",
    type=int,
    default=_DEFAULTS.prefill_tokens,
    show_default=True,
    metavar="N",
    help="The same in a step of prefill.",
)
@_exchange(
    "--dispatch-dtype",
    default=_DEFAULTS.dispatch_dtype,
    show_default=True,
    metavar="|".join(ITEM_BYTES),
    help="Of tokens on their way to experts.",
)
@_exchange(
    "--combine-dtype",
    default=_DEFAULTS.combine_dtype,
    show_default=True,
    metavar="|".join(ITEM_BYTES),
    help="Of results on their way back.",
)
@_exchange(
    "--send",
    default=_DEFAULTS.send,
    show_default=True,
    metavar="|".join(SENDS),
    help="A token goes out once an expert, or once to each rank that holds some of them.",
)
@_exchange(
    "--overlap/--no-overlap",
    default=_DEFAULTS.overlap,
    show_default=True,
    help="Choose the degree by times with waves.",
)
@_exchange(
    "--multicast/--no-multicast",
    default=_DEFAULTS.multicast,
    help="Whether a device can store to all of its domain at once.  [default: NVIDIA's behind NVSwitch]",
)
@_exchange(
    "--sms",
    type=int,
    default=_DEFAULTS.sms,
    metavar="N",
    help="Multiprocessors of a device, for waves.  [default: the hardware's]",
)
@_load(
    "--load",
    default=_DEFAULTS.load,
    show_default=True,
    metavar="WORD|FILE",
    help="uniform, zipf(S), or a JSON or CSV file with counts: one an expert, or a row a layer.",
)
@_load(
    "--placement",
    default=_DEFAULTS.placement,
    show_default=True,
    metavar="|".join(PLACEMENTS),
    help="Experts on ranks by their numbers, by their load, or the hottest more than once.",
)
@_load(
    "--redundant-per-rank",
    type=int,
    default=_DEFAULTS.redundant_per_rank,
    show_default=True,
    metavar="N",
    help="Further experts of a rank where the hottest are replicated.",
)
@_load("--seed", type=int, default=_DEFAULTS.seed, show_default=True, metavar="N", help="Of drawn loads.")
@output_options
def moe(**options: Any) -> None:  # noqa: ANN401  # checked where they are taken
    """Plan expert parallelism.

    For every degree (--ep chooses one, else the quickest is looked for): what a rank holds, touches and
    sends, how uneven ranks are, what communication costs and hides, and the time of a layer; then the
    three ways in which a LatentMoE layer can end under tensor parallelism. Nothing is run.
    """
    from milepost.planner.moe.plan import plan_moe
    from milepost.planner.moe.report import moe_report

    outputs = take_outputs(options)
    deployment = take_deployment(options)
    found = plan_moe(MoeQuestion(deployment=deployment, **options))
    finish(found, moe_report(found), outputs)
