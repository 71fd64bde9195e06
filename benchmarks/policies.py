"""Every snapshot policy with every eviction under every budget, on two recorded traces, in Kimi K3's sizes.

Needs ``--traces DIR``, a folder with

    mooncake-conversation.jsonl.gz   Mooncake's conversation trace (kvcache-ai/Mooncake, Apache-2.0)
    claude-code-sessions.jsonl.gz    sessions of a coding agent (callanjfox/kv-cache-tester, Apache-2.0)

``clairvoyant`` knows the rest of the trace: how much could be won at all. The last rows say how much of
that the default wins:

    share = (adaptive with value - branch with lru) / (clairvoyant - branch with lru)

Requests are served one at a time, as they come. A run takes 5 to 100 s, all of them hours; ``--quick``
takes the first requests of each trace, two budgets and the rows that matter most.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from rich.console import Console
from rich.table import Table

from benchmarks.on_traces import OnTraces
from benchmarks.results import Result
from milepost.errors import ConfigError
from milepost.machine import usable_cores
from milepost.sim.clairvoyant.oracle import CLAIRVOYANT, clairvoyant_parts
from milepost.sim.models import find_model
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RunResult, RunSpec
from milepost.sim.traces.options import TraceOptions
from milepost.sim.traces.reading import read_trace
from milepost.sim.traces.trace import Trace

__all__ = ["policies", "share_won", "specs_of"]

TRACES = ("mooncake-conversation.jsonl.gz", "claude-code-sessions.jsonl.gz")
MODEL = "kimi-k3"
GB = 10**9
BUDGETS = (200 * GB, 400 * GB, 800 * GB, 1600 * GB, None)
POLICIES = (
    *("every(512)", "every(2048)", "every(8192)"),
    *("turns", "branch", "turns+branch", "turns+every(8192)"),
    *("budget", "budget(snapshots=1)", "budget(snapshots=2)", "budget(snapshots=4)", "budget(snapshots=8)"),
    *("adaptive", CLAIRVOYANT),
)
EVICTIONS = ("lru", "marconi(alpha=1)", "value", CLAIRVOYANT)

QUICK_REQUESTS = 3000
QUICK_BUDGETS = (200 * GB, None)
QUICK_POLICIES = ("every(2048)", "branch", "budget(snapshots=4)", "adaptive", CLAIRVOYANT)
QUICK_EVICTIONS = ("lru", "value", CLAIRVOYANT)

DEFAULT, BASE, BEST = ("adaptive", "value"), ("branch", "lru"), (CLAIRVOYANT, CLAIRVOYANT)
UNLIMITED = "unlimited"

HitRates = dict[tuple[str, str, str], float]
"""By policy, eviction and budget."""


def policies(options: OnTraces) -> Iterator[Result]:
    """Hit rates of all policies, evictions and budgets on recorded traces, and of an oracle's."""
    console = Console()
    first = QUICK_REQUESTS if options.quick else None
    for name in TRACES:
        path = options.folder / name
        if not path.exists():
            raise ConfigError(f"policies needs {name} in the folder of --traces. Given: {options.folder}.")
        trace = read_trace(path, TraceOptions(first=first))
        results = _run_all(specs_of(quick=options.quick), trace)
        console.print(_table(trace.name, results))
        yield from map(_result, results)


def specs_of(*, quick: bool) -> list[RunSpec]:
    """Every point; without a limit nothing is evicted, and one eviction is enough."""
    names = QUICK_POLICIES if quick else POLICIES
    evictions = QUICK_EVICTIONS if quick else EVICTIONS
    return [
        RunSpec(model=MODEL, budget_bytes=budget, policy=policy, eviction=eviction)
        for policy in names
        for eviction in evictions
        for budget in (QUICK_BUDGETS if quick else BUDGETS)
        if budget is not None or eviction == evictions[0]
    ]


def share_won(rates: HitRates, budget: str) -> float | None:
    """How much of what the oracle wins over `BASE` the default wins too; None for nothing to win.

    Raises:
        KeyError: one of the three was not run.
    """
    default, base, best = (rates[*row, budget] for row in (DEFAULT, BASE, BEST))
    return (default - base) / (best - base) if best > base else None


def _run_all(specs: Sequence[RunSpec], trace: Trace) -> list[RunResult]:
    """Every point on its own, over the cores; the trace is inherited by the processes."""
    done: list[RunResult] = []
    with ProcessPoolExecutor(
        usable_cores(), get_context("fork"), initializer=_inherit, initargs=(trace,)
    ) as pool:
        for result in pool.map(_run, specs):
            done.append(result)
            row = f"{result.policy}, {result.eviction}, {_budget(result.budget_bytes)}"
            print(
                f"{trace.name}, {row}: {100 * result.hit_rate:.2f} % in {result.wall_seconds:.0f} s",
                file=sys.stderr,
            )
    return done


_inherited: list[Trace] = []


def _inherit(trace: Trace) -> None:
    _inherited[:] = [trace]


def _run(spec: RunSpec) -> RunResult:
    (trace,) = _inherited
    _, model = find_model(spec.model)
    return Simulation(spec, trace, clairvoyant_parts(spec, trace, model)).run()


def _result(result: RunResult) -> Result:
    return Result(
        benchmark="policies",
        subject=f"{result.trace}, {_budget(result.budget_bytes)}",
        quantity=f"{result.policy}, {result.eviction}: hit",
        unit="%",
        samples=[100 * result.hit_rate],
        settings={
            "model": result.model,
            "requests": result.requests,
            "input_tokens": result.input_tokens,
            "hit_tokens": result.hit_tokens,
            "snapshots_per_request": round(result.snapshots_per_request, 3),
            "snapshots_used": result.snapshots_used,
            "seconds": round(result.wall_seconds, 1),
        },
    )


def _table(name: str, results: Sequence[RunResult]) -> Table:
    """Policies and evictions by budgets, in percent of the input tokens."""
    budgets = list(dict.fromkeys(_budget(result.budget_bytes) for result in results))
    rates: HitRates = {(r.policy, r.eviction, _budget(r.budget_bytes)): 100 * r.hit_rate for r in results}
    table = Table("policy", "eviction", title=f"{name}: hit rate in %")
    for budget in budgets:
        table.add_column(budget, justify="right")
    for policy, eviction in dict.fromkeys((result.policy, result.eviction) for result in results):
        cells = [rates.get((policy, eviction, budget)) for budget in budgets]
        table.add_row(policy, eviction, *(_percent(cell) for cell in cells))
    limited = [budget for budget in budgets if budget != UNLIMITED]
    table.add_section()
    gaps = {budget: rates[*BEST, budget] - rates[*DEFAULT, budget] for budget in limited}
    table.add_row("clairvoyant - adaptive", "points", *(_percent(gaps.get(budget)) for budget in budgets))
    shares = {budget: share_won(rates, budget) for budget in limited}
    table.add_row("adaptive's share", "%", *(_percent(shares.get(budget), 100) for budget in budgets))
    return table


def _percent(value: float | None, factor: int = 1) -> str:
    return "" if value is None else f"{factor * value:.2f}"


def _budget(count: int | None) -> str:
    return UNLIMITED if count is None else f"{count // GB} GB"
