"""``milepost plan memory``: how states and KV lie in memory, and how many fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from milepost.byte_counts import parse_bytes
from milepost.cli.option_groups import GroupedCommand, option_group
from milepost.cli.options import examples
from milepost.cli.plan.options import deployment_options, take_deployment
from milepost.cli.plan.outputs import finish, output_options, take_outputs
from milepost.cli.plan.quantities import tokens_of
from milepost.cli.trace_options import open_trace, take_trace_options, trace_options
from milepost.memory.named_layout import SIMULATED_LAYOUTS
from milepost.planner.memory.question import MemoryQuestion

__all__ = ["memory"]

_layout = option_group("How memory is laid out")
_room = option_group("What it must hold")
_DEFAULTS = MemoryQuestion()


@click.command(
    cls=GroupedCommand,
    shared_heading="Trace",
    epilog=examples(
        "milepost plan memory --model kimi-k3 --tp 8",
        "milepost plan memory --model kimi-k3 --tp 8 --cp 8 --kv-dtype fp8 --layout aligned --alignment 128",
        "milepost plan memory --model kimi-linear --memory 200GB --compare --context 256k",
        "milepost plan memory --model kimi-k3 --tp 8 --trace trace.jsonl.gz --time-scale 4",
        "milepost plan memory --model kimi-k3 --tp 8 --explain batch.ideal.8k",
    ),
)
@deployment_options
@_layout(
    "--layout",
    default=_DEFAULTS.layout,
    show_default=True,
    metavar="|".join(SIMULATED_LAYOUTS),
    help="How pages are cut: aligned as vLLM does, lcm as Jenga.",
)
@_layout("--compare", is_flag=True, help="All layouts side by side.")
@_layout(
    "--block-size",
    type=int,
    default=_DEFAULTS.block_size,
    show_default=True,
    metavar="TOKENS",
    help="Of a KV block, of paged and lcm.",
)
@_layout(
    "--alignment",
    type=int,
    default=_DEFAULTS.kernel_alignment,
    show_default=True,
    metavar="TOKENS",
    help="By which the block of aligned grows.",
)
@_layout(
    "--match-unit",
    type=int,
    default=_DEFAULTS.match_unit,
    show_default=True,
    metavar="TOKENS",
    help="Between prefix keys.",
)
@_layout(
    "--drafts",
    type=int,
    default=_DEFAULTS.drafts,
    show_default=True,
    metavar="N",
    help="Tokens that a speculative step drafts: a state's window keeps as many more inputs.",
)
@_room(
    "--slots",
    type=float,
    default=_DEFAULTS.slots,
    show_default=True,
    metavar="N",
    help="States that a request takes, kept snapshots included; other planners charge 5.",
)
@_room(
    "--trace",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Requests to simulate on one group: measures the states of a request, in place of --slots.",
)
@_room(
    "--context",
    "contexts",
    multiple=True,
    metavar="TOKENS",
    help="Of a request, such as 8192, 128k or 1M; may be given again.  [default: 1k to 1M]",
)
@_room(
    "--short",
    type=int,
    default=_DEFAULTS.short_tokens,
    show_default=True,
    metavar="TOKENS",
    help="Of the short request whose waste is told.",
)
@_room(
    "--memory",
    metavar="BYTES",
    help="For states and KV on a device.  [default: what weights and workspace leave]",
)
@_room("--reserve", metavar="BYTES", help="For a step's workspace.  [default: an estimate]")
@_room(
    "--step-tokens",
    type=int,
    default=_DEFAULTS.step_tokens,
    show_default=True,
    metavar="N",
    help="Tokens of the largest step, for that estimate.",
)
@trace_options
@output_options
def memory(**options: Any) -> None:  # noqa: ANN401 - click's options by name
    """How states and KV lie in memory: page sizes, what fits, the largest batch.

    Sizes are of one device. A layout's formulas are held against what the engine and the simulator lay out,
    and every number says with --explain what it comes from.
    """
    outputs = take_outputs(options)
    how, path = take_trace_options(options), options.pop("trace")
    question = _question(options)
    from milepost.planner.memory.plan import plan_memory
    from milepost.planner.memory.report import memory_report

    plan = plan_memory(question, None if path is None else open_trace(path, how))
    finish(plan, memory_report(plan), outputs)


def _question(options: dict[str, Any]) -> MemoryQuestion:
    deployment = take_deployment(options)
    contexts = tuple(dict.fromkeys(tokens_of("--context", text) for text in options.pop("contexts")))
    memory_text, reserve_text = options.pop("memory"), options.pop("reserve")
    return MemoryQuestion(
        deployment=deployment,
        kernel_alignment=options.pop("alignment"),
        short_tokens=options.pop("short"),
        contexts=contexts or _DEFAULTS.contexts,
        memory_bytes=0 if memory_text is None else parse_bytes(memory_text, name="--memory"),
        reserve_bytes=None if reserve_text is None else _reserve(reserve_text),
        **options,
    )


def _reserve(text: str) -> int:
    return 0 if text.strip() == "0" else parse_bytes(text, name="--reserve")
