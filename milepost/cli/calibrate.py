"""``milepost calibrate``: time real steps of this machine's engine, for the simulator to reckon with."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from milepost import __version__
from milepost.cli.options import examples, model_argument, runner_options, take_engine_config
from milepost.cli.terminal import notes, print_notes, progress_bar, results
from milepost.config import EngineConfig, ResolvedConfig
from milepost.config_json import read_model_spec
from milepost.error_text import printable
from milepost.errors import ConfigError
from milepost.machine import processor_name
from milepost.memory.named_layout import named_layout
from milepost.sim.cost.calibration import (
    TRUSTED_ERROR,
    Calibration,
    Coefficients,
    fit,
    mean_error,
    model_fingerprint,
    predict,
)
from milepost.sim.whole_files import replacing

if TYPE_CHECKING:
    from milepost.llm.step_timing import PlannedStep

__all__ = ["calibrate"]

DEFAULT_REPEATS = 7


@click.command(
    epilog=examples(
        "milepost calibrate --out this-machine.json",
        "milepost calibrate path/to/checkpoint --threads 8 --memory 8GiB --out server.json",
        "milepost simulate trace.jsonl --model milepost-toy-k3 --hardware this-machine.json",
    )
)
@model_argument
@click.option("--out", type=click.Path(path_type=Path), required=True, metavar="FILE", help="JSON to write.")
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=DEFAULT_REPEATS,
    show_default=True,
    help="How often each step runs; the median counts.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the file's content instead of tables.")
@runner_options
def calibrate(
    *,
    model: Path,
    out: Path,
    repeats: int,
    as_json: bool,
    **options: Any,  # noqa: ANN401  # the shared options, checked where they are taken
) -> None:
    """Measure how long steps take on this machine.

    Prefill chunks, decoding and snapshots of several sizes are timed with MODEL and the engine's options,
    and a time for each token, row, pair and so on is fitted to them. 'milepost simulate' takes the file as
    --hardware, for the same model.
    """
    from milepost.llm.loading import load_runner, resolve_engine  # loads torch, which takes seconds
    from milepost.llm.step_timing import StepTimer, plan_steps

    _check_writable(out)
    config = take_engine_config(model, options)
    spec = read_model_spec(model)
    layout = named_layout(config.layout, spec, **config.layout_options())
    resolved = resolve_engine(config, spec, layout)
    planned = plan_steps(resolved, layout)
    with progress_bar("Loading weights") as progress:
        runner = load_runner(model, layout, resolved, progress=progress)
    print_notes(resolved.notes)
    try:
        timer = StepTimer(runner, layout, spec.vocab_size, repeats=repeats)
        with _steps_bar(repeats * len(planned)) as on_step:
            points = tuple(timer.measure(planned, on_step))
    finally:
        runner.close()
    coefficients = fit(points)
    error = mean_error(coefficients, [point for point in points if point.fitted])
    assert error is not None  # `fit` asks for points
    found = Calibration(
        model=model.resolve().name,
        fingerprint=model_fingerprint(spec),
        machine=_machine(resolved),
        engine=_engine(config, resolved),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        milepost=__version__,
        coefficients=coefficients,
        fitted_error=error,
        checked_error=mean_error(coefficients, [point for point in points if not point.fitted]),
        points=points,
    )
    content = msgspec.json.format(msgspec.json.encode(found), indent=2)
    with replacing(out) as file:
        file.write(content + b"\n")
    print_notes(_doubts(found))
    if as_json:
        click.echo(content)
        return
    for table in (_points_table(found), _coefficients_table(coefficients)):
        results().print(table)
    click.echo(_summary(found, out))


@contextmanager
def _steps_bar(total: int) -> Iterator[Callable[[PlannedStep], None] | None]:
    """A bar of steps on a terminal; yields what is to be told of each, None off a terminal."""
    console = notes()
    if not console.is_terminal:
        yield None
        return
    columns = (
        TextColumn("Timing steps"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)

        def show(step: PlannedStep) -> None:
            progress.update(task, description=step.what, advance=1)

        yield show


def _check_writable(out: Path) -> None:
    """Find out before a minute of measuring, not after it."""
    folder = out.parent
    if out.is_dir() or not folder.is_dir() or not os.access(folder, os.W_OK):
        what = "is a folder" if out.is_dir() else f"lies in no folder that can be written ({folder})"
        raise ConfigError(f"--out must name a file that can be written. Given: {out}, which {what}.")


def _machine(config: ResolvedConfig) -> str:
    threads = "1 thread" if config.threads == 1 else f"{config.threads} threads"
    return f"{processor_name()}, {threads}"


def _engine(config: EngineConfig, resolved: ResolvedConfig) -> dict[str, str | int]:
    return {
        "dtype": resolved.dtype,
        "kv_dtype": resolved.kv_dtype,
        "weights": resolved.weights,
        "layout": config.layout,
        "block_size": config.block_size,
        "kernels": resolved.kernels,
        "threads": resolved.threads,
    }


def _points_table(found: Calibration) -> Table:
    table = Table(title=escape(printable(f"{found.model} on {found.machine}")), title_justify="left")
    table.add_column("step")
    for name in ("measured ms", "predicted ms", "error", "use"):
        table.add_column(name, justify="right")
    for point in found.points:
        predicted = predict(found.coefficients, point.work)
        table.add_row(
            point.what,
            f"{point.seconds * 1e3:.3f}",
            f"{predicted * 1e3:.3f}",
            f"{predicted / point.seconds - 1:+.0%}",
            "fit" if point.fitted else "check",
        )
    return table


def _coefficients_table(coefficients: Coefficients) -> Table:
    table = Table(title="Microseconds a step, and for each ...", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, seconds in msgspec.structs.asdict(coefficients).items():
        table.add_row(name.replace("_", " "), f"{seconds * 1e6:.4g}")
    return table


def _summary(found: Calibration, out: Path) -> str:
    checked = (
        "" if found.checked_error is None else f", {found.checked_error:.0%} on those left out of the fit"
    )
    return f"Mean error {found.fitted_error:.0%} on the fitted steps{checked}. Written to {out}."


def _doubts(found: Calibration) -> list[str]:
    """Whether the file should be used at all."""
    worst = found.worst_error
    if worst <= TRUSTED_ERROR:
        return []
    doubt = (
        f"A mean error of {worst:.0%} is more than {TRUSTED_ERROR:.0%}: times of this file can't be trusted."
    )
    return [
        f"{doubt} Most likely the machine was busy: measure again when it is idle, or with more --repeats."
    ]
