"""``milepost bench``: how fast this machine runs a model, how near its limits, and where the time goes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from milepost.cli.options import examples, model_argument, runner_options, take_engine_config
from milepost.cli.output_files import STDOUT
from milepost.cli.plan.outputs import finish, take_outputs
from milepost.cli.terminal import print_notes, progress_bar
from milepost.config import ResolvedConfig
from milepost.config_json import read_model_spec
from milepost.errors import ConfigError
from milepost.machine import processor_name
from milepost.memory.named_layout import named_layout

if TYPE_CHECKING:
    from milepost.llm.step_profile import StepProfile

__all__ = ["bench"]

_BELIEVABLE = 1.2
"""Times its limit that a part bound by arithmetic may seem to reach."""

NOTES = (
    (
        "A limit is the longer of a part's FLOPs and its bytes at the two rates above: weights, states and "
        "KV are taken to come from memory. What fits the processor's caches from step to step can beat it."
    ),
    (
        "Speeds are medians, profiles are of the quickest run. Both are of steps as the engine runs them, "
        "without scheduling, tokenizing and a server around them."
    ),
)
"""What a reader of the tables must know."""

_MOST_DIGITS = 12
"""Of a number in an option: no machine runs more tokens, and Python refuses to read far longer ones."""


@click.command(
    epilog=examples(
        "milepost bench",
        "milepost bench path/to/checkpoint --threads 8 --weights bfloat16 --decode 1,8,32 --profile",
        "milepost bench --prefill '' --decode 1 --profile --html bench.html",
    )
)
@model_argument
@click.option("--prefill", default="2048", show_default=True, metavar="N,...", help="Prompt lengths.")
@click.option("--decode", default="1,8,32", show_default=True, metavar="N,...", help="Batch sizes.")
@click.option(
    "--context",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Tokens before the decoded one.",
)
@click.option(
    "--repeats", type=click.IntRange(min=2), default=9, show_default=True, help="Runs of each step."
)
@click.option("--profile", is_flag=True, help="Show where each step's time goes, part by part.")
@click.option(
    "--json", is_flag=False, flag_value=STDOUT, metavar="FILE", help="One object; without FILE on stdout."
)
@click.option("--html", type=click.Path(path_type=Path), metavar="FILE", help="A page with the pictures.")
@runner_options
def bench(
    *,
    model: Path,
    prefill: str,
    decode: str,
    context: int,
    repeats: int,
    profile: bool,
    **options: Any,  # noqa: ANN401  # the shared options, checked where they are taken
) -> None:
    """Measure how fast this machine runs MODEL.

    Prompts and decode steps run on the model as they do in the engine, on the compiled kernels, and are held
    against what the machine's memory and arithmetic allow, which is measured first. With --profile, each part
    of the model is.
    """
    from milepost.cli.bench_report import BenchResult, bench_report
    from milepost.kernels.native import native  # loads torch, which takes seconds
    from milepost.kernels.native.limits import measure_limits
    from milepost.llm.bench import limits_cost, measure_speeds, planned_workloads
    from milepost.llm.loading import load_runner, resolve_engine
    from milepost.llm.step_profile import profile_steps
    from milepost.llm.stored_shape import stored_shape

    outputs = take_outputs({"json": options.pop("json"), "html": options.pop("html"), "explain": ()})
    config = take_engine_config(model, options)
    spec = read_model_spec(model)
    layout = named_layout(config.layout, spec, **config.layout_options())
    resolved = resolve_engine(config, spec, layout)
    _check_kernels(resolved)
    workloads = planned_workloads(
        _counts("--prefill", prefill), _counts("--decode", decode), context, resolved, layout
    )
    with progress_bar("Loading weights") as progress:
        runner = load_runner(model, layout, resolved, progress=progress)
    print_notes(resolved.notes)
    limits = measure_limits()
    cost = limits_cost(stored_shape(spec, model, resolved.weights), limits, resolved)
    try:
        timed = measure_speeds(runner, layout, workloads, cost, vocab_size=spec.vocab_size, repeats=repeats)
        steps = [step for workload in workloads for step in workload.steps] if profile else []
        profiles = profile_steps(runner, layout, steps, cost, vocab_size=spec.vocab_size, repeats=repeats)
    finally:
        runner.close()
    found = BenchResult(
        model=model.resolve().name,
        machine=f"{processor_name()}, {resolved.threads} thread{'s' if resolved.threads > 1 else ''}",
        kernels=f"{resolved.kernels} ({native.target()})",
        weights=resolved.weights,
        weight_bytes=resolved.weight_bytes,
        read_bytes_per_second=limits.read_bytes_per_second,
        flops_per_second=limits.flops_per_second,
        speeds=timed,
        profiles=tuple(profiles),
        notes=NOTES + _doubts(profiles),
    )
    finish(found, bench_report(found), outputs)


def _doubts(profiles: Sequence[StepProfile]) -> tuple[str, ...]:
    """Whether the limits were measured on a busy machine: nothing computes faster than it can."""
    parts = [part for profile in profiles for part in profile.parts if part.bound == "compute"]
    if all(part.limit_seconds <= _BELIEVABLE * part.seconds for part in parts):
        return ()
    doubt = (
        "Some parts computed faster than the limit that was measured: the machine was busy then, or is now "
        "and then. Measure again when it is idle."
    )
    return (doubt,)


def _counts(option: str, text: str) -> tuple[int, ...]:
    """Whole numbers of at least 1 and at most 12 digits with commas between; none for an empty text."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(map(_is_count, parts)):
        raise ConfigError(
            f"{option} must be whole numbers of at least 1 and at most {_MOST_DIGITS} digits with commas "
            f"between. Given: {text!r:.60}."
        )
    return tuple(map(int, parts))


def _is_count(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS and int(text) > 0


def _check_kernels(config: ResolvedConfig) -> None:
    if config.kernels != "cpu":
        why = " ".join(config.notes[:1]) or "Choose --kernels cpu."
        raise ConfigError(f"bench measures the compiled kernels (cpu). Given: {config.kernels}. {why}")
