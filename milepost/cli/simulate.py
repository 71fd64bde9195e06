"""``milepost simulate``: what a cache would hit on recorded traffic, under any policy, budget and layout."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from milepost.cli.option_groups import GroupedCommand
from milepost.cli.options import examples
from milepost.cli.simulate_options import (
    TRACE_HEADING,
    simulate_options,
    take_base_spec,
    take_grid_options,
    take_outputs,
)
from milepost.cli.trace_options import take_trace_options, trace_options
from milepost.errors import ConfigError
from milepost.sim.runs import RunSpec
from milepost.sim.sweep.grid import GridOptions, grid, parse_present

__all__ = ["default_budgets", "simulate"]

DEFAULT_PRESETS = ("vllm(retention=0)", "sglang", "marconi", "unlimited")
"""vLLM's retention is what it does unless told otherwise; see docs/presets.md."""
DEFAULT_STATES = (450, 1800)
"""What the default budgets hold, in states: for Kimi K3 they are 200 and 800 GB."""


@click.command(
    cls=GroupedCommand,
    shared_heading=TRACE_HEADING,
    epilog=examples(
        "milepost simulate trace.jsonl.gz",
        "milepost simulate trace.jsonl --model kimi-k3 --budget 200GB,400GB,unlimited \\",
        "    --policy 'turns+branch,every(2048)',adaptive --eviction value,lru --html report.html",
        "milepost simulate trace.jsonl --budget 400GB --preset sglang --policy adaptive \\",
        "    --recommend --present 'preset=vllm(retention=0)'",
        "milepost simulate trace.jsonl --queueing --tp 8 --budget 40GB --ttft-limit 1 --json | jq .",
        "milepost simulate chats.jsonl --tokenizer path/to/checkpoint --warm-up 0.1",
        "milepost simulate --list-presets",
    ),
)
@click.argument("trace", type=click.Path(path_type=Path), required=False)
@simulate_options
@trace_options
def simulate(
    *,
    trace: Path | None,
    list_presets: bool,
    recommend: bool,
    present: str | None,
    jobs: int,
    ray: str | None,
    **options: Any,  # noqa: ANN401  # checked where they are taken
) -> None:
    """Replay recorded traffic and compare prefix caches.

    TRACE is a file of requests: Mooncake, Claude Code sessions, Qwen-Bailian, token ids, chat logs or
    Azure, plain, gz or zst. The scheduler, prefix cache and policies that serve also replay it, once for
    each point of the comparison.

    Without lists, adaptive is compared with models of vLLM, SGLang and Marconi under two budgets that
    suit the model, and with unlimited memory.
    """
    from milepost.cli.simulate_results import Job, run_job, show_presets

    if list_presets:
        show_presets()
        return
    trace, options["json"], ray = _tell_apart(trace, options["json"], ray)
    if jobs < 0:
        raise ConfigError(f"--jobs must be at least 1, or 0 for all usable cores. Given: {jobs}.")
    outputs = take_outputs(options, trace)
    base = take_base_spec(options)
    specs = _points(take_grid_options(options), base)
    if recommend and all(spec.preset for spec in specs):
        raise click.UsageError("--recommend names settings of Milepost. Add --policy, such as adaptive.")
    today: tuple[RunSpec, ...] = ()
    if present is not None:
        today = _at_each_budget(parse_present(present, base), specs)
    run_job(
        Job(
            trace=trace,
            trace_options=take_trace_options(options),
            specs=specs,
            present=today,
            outputs=outputs,
            recommends=recommend,
            jobs=jobs,
            ray=ray,
        )
    )


def _tell_apart(trace: Path | None, json: str | None, ray: str | None) -> tuple[Path, str | None, str | None]:
    """An option that may stand without a value takes the next word for one: here, the trace."""
    if trace is None and json is not None and Path(json).is_file():
        trace, json = Path(json), "-"
    if trace is None and ray is not None and Path(ray).is_file():
        trace, ray = Path(ray), ""
    if trace is None:
        raise click.UsageError("Missing argument 'TRACE'.")
    return trace, json, ray


# --- which points -----------------------------------------------------------------------------------


def _points(lists: GridOptions, base: RunSpec) -> tuple[RunSpec, ...]:
    if not any((lists.policies, lists.evictions, lists.layouts, lists.presets)):
        lists = msgspec.structs.replace(lists, policies=(base.policy,), presets=DEFAULT_PRESETS)
    specs = grid(lists, base)
    if lists.budgets:
        return specs
    budgets = [f"{count}B" for count in default_budgets(base)]
    return grid(msgspec.structs.replace(lists, budgets=budgets), base)


def default_budgets(base: RunSpec) -> tuple[int, ...]:
    """Room for a few hundred states of the model, and for four times as many, in round numbers.

    Raises:
        ConfigError: an unknown model, or one that can't be laid out so.
    """
    from milepost.memory.named_layout import named_layout
    from milepost.sim.models import find_model

    layout = named_layout(
        "paged",
        find_model(base.model)[1],
        block_size=64,
        kv_itemsize=base.kv_itemsize,
        recurrent_itemsize=base.state_itemsize,
        tensor_parallel=base.tensor_parallel,
    )
    return tuple(int(float(f"{layout.state_bytes * count:.0e}")) for count in DEFAULT_STATES)


def _at_each_budget(present: RunSpec, specs: Sequence[RunSpec]) -> tuple[RunSpec, ...]:
    budgets = dict.fromkeys(spec.budget_bytes for spec in specs)
    return tuple(msgspec.structs.replace(present, budget_bytes=budget) for budget in budgets)
