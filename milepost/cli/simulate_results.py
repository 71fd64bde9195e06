"""What ``milepost simulate`` does with its points: read the trace, run them, show and write what came out."""

from __future__ import annotations

import math
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from milepost.cli.per_request import PerRequestFile
from milepost.cli.simulate_options import Outputs
from milepost.cli.sweep_progress import sweep_bar
from milepost.cli.terminal import notes, print_notes, print_table, results, write
from milepost.cli.trace_options import open_trace
from milepost.sim.presets.names import PRESETS, explain_preset
from milepost.sim.recommend import Recommendation, recommend
from milepost.sim.reports import table, to_json, write_csv, write_html, write_parquet
from milepost.sim.reports.files import save
from milepost.sim.runs import RunResult, RunSpec
from milepost.sim.sweep.grid import point_name
from milepost.sim.sweep.sweep import SweepCallbacks, check_points, run_sweep
from milepost.sim.traces.options import TraceOptions
from milepost.sim.traces.trace import Trace

__all__ = ["Job", "run_job", "show_presets"]

_OVERLOAD = 1.25
_LEAST_TRACE = 60.0
"""Seconds: in a shorter trace the last request alone may take long enough to look like a queue."""


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One call of the command.

    Attributes:
        trace: file of requests.
        trace_options: how it is read.
        specs: what is compared.
        present: what runs today, at each budget; empty when that was not said.
        outputs: where results go.
        recommends: whether the best is named.
        jobs: processes; 0 for the usable cores.
        ray: address of a Ray cluster, "" for one that is started here, None for none.
    """

    trace: Path
    trace_options: TraceOptions
    specs: tuple[RunSpec, ...]
    present: tuple[RunSpec, ...]
    outputs: Outputs
    recommends: bool
    jobs: int
    ray: str | None


def run_job(job: Job) -> None:
    """Do it.

    Raises:
        InputError: the trace can't be read, points can't be run, or results can't be written.
    """
    trace = open_trace(job.trace, job.trace_options)
    # What runs today comes first of its budget: gains are counted over it.
    order = [*dict.fromkeys(spec.budget_bytes for spec in job.specs)]
    wanted = sorted((*job.present, *job.specs), key=lambda spec: order.index(spec.budget_bytes))
    checked = check_points(wanted, trace)
    specs = tuple(dict.fromkeys(checked))
    print_notes([*trace.notes, *_about_units(specs, trace)])
    present = {checked[wanted.index(spec)] for spec in job.present}
    started = time.perf_counter()
    found = _run(job, specs, trace)
    seconds = time.perf_counter() - started
    today = [result for spec, result in zip(specs, found, strict=True) if spec in present]
    print_notes([*_refusals(specs, found), *_overloads(specs, found, trace.seconds)])
    _show(job, found, today, seconds)
    _write(job.outputs, found, today)


def _about_units(specs: Sequence[RunSpec], trace: Trace) -> list[str]:
    if not any(0 < spec.match_unit < trace.block_size for spec in specs):
        return []
    blocks = f"{trace.name} tells tokens apart by blocks of {trace.block_size}"
    return [
        (
            f"{blocks}: a smaller match unit can hit more than is shown here, by less than a block a "
            "request. Rows that differ in it alone come out equal: one such unit is enough."
        )
    ]


def _refusals(specs: Sequence[RunSpec], found: Sequence[RunResult]) -> list[str]:
    refused = {
        point_name(spec): result.refused for spec, result in zip(specs, found, strict=True) if result.refused
    }
    if not refused:
        return []
    most = max(refused, key=lambda name: refused[name])
    return [
        (
            f"{len(refused)} of {len(found)} points refused requests that can never fit their budget, up to "
            f"{refused[most]:,} ({most}). They are not counted, so such points don't compare with others."
        )
    ]


def _overloads(specs: Sequence[RunSpec], found: Sequence[RunResult], seconds: float) -> list[str]:
    """Of points with queueing: whether the queue grew without end, so that times show its length alone."""
    late = {
        point_name(spec): result.seconds / seconds
        for spec, result in zip(specs, found, strict=True)
        if result.queueing and seconds >= _LEAST_TRACE and result.seconds > _OVERLOAD * seconds
    }
    if not late:
        return []
    most = max(late, key=lambda name: late[name])
    slower = math.ceil(1.2 * late[most])
    return [
        (
            f"{len(late)} of {len(found)} points took up to {late[most]:.1f} times as long as the arrivals "
            f"({most}): one replica can't keep up with this load, and times show how its queue grows. Spread "
            f"arrivals as if over more replicas, with a --time-scale {slower} times as large, or give other "
            "--hardware."
        )
    ]


def _run(job: Job, specs: Sequence[RunSpec], trace: Trace) -> list[RunResult]:
    with (
        PerRequestFile(job.outputs.per_request, specs) as requests,
        sweep_bar(len(specs), len(trace.requests)) as (point, served),
    ):
        callbacks = SweepCallbacks(
            on_result=lambda _index, _result: point(),
            on_progress=served,
            on_outcomes=requests.add if requests.wanted else None,
        )
        if job.ray is not None:
            from milepost.sim.sweep.on_ray import run_sweep_on_ray

            return run_sweep_on_ray(specs, trace, address=job.ray, callbacks=callbacks)
        return run_sweep(specs, trace, jobs=job.jobs, callbacks=callbacks)


# --- afterwards -------------------------------------------------------------------------------------


def _show(job: Job, found: Sequence[RunResult], today: Sequence[RunResult], seconds: float) -> None:
    if job.outputs.on_stdout:
        write(to_json(found))
    else:
        print_table(table(found, today[0] if today else None, width=results().width))
    if job.recommends:
        text = "\n".join(recommendation.text() for recommendation in _recommendations(found, today))
        if job.outputs.on_stdout:
            print(text, file=sys.stderr)
        else:
            write(text)
    if notes().is_terminal:
        print_notes([f"{len(found)} points in {seconds:.1f} s."])


def _recommendations(found: Sequence[RunResult], today: Sequence[RunResult]) -> list[Recommendation]:
    """One for each budget at which Milepost itself was simulated."""
    queueing = any(result.queueing for result in found)
    budgets = dict.fromkeys(result.budget_bytes for result in found if not result.preset)
    present = {result.budget_bytes: result for result in today}
    return [
        recommend(found, present.get(budget), budget, measure="goodput" if queueing else "hit_rate")
        for budget in budgets
    ]


def _write(outputs: Outputs, found: Sequence[RunResult], today: Sequence[RunResult]) -> None:
    if outputs.json is not None and not outputs.on_stdout:
        save(Path(outputs.json), to_json(found).encode())
    if outputs.csv is not None:
        write_csv(found, outputs.csv)
    if outputs.parquet is not None:
        write_parquet(found, outputs.parquet)
    if outputs.html is not None:
        command = shlex.join(["milepost", *sys.argv[1:]])
        write_html(found, outputs.html, command=command, present=today[0] if today else None)


def show_presets() -> None:
    """Every preset: what it models, from which source, and what it leaves out."""
    write("\n\n".join(map(explain_preset, PRESETS)), end="\n")
