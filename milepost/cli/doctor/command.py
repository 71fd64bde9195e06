"""The command: examines, and shows what was found."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.text import Text

from milepost import __version__
from milepost.cli.config_file import NO_FILE, read_config_file
from milepost.cli.doctor.finding import Finding, Level, worst_of
from milepost.cli.options import examples, take_engine_config
from milepost.cli.serve_options import take_server_config
from milepost.cli.shipped_model import SHIPPED_MODEL_NAME, shipped_model
from milepost.cli.terminal import results, write
from milepost.cli.word_completion import models
from milepost.error_text import printable

__all__ = ["doctor"]

EXIT_PROBLEM = 1
_STYLES = {Level.OK: "green", Level.NOTE: "cyan", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}
_LEVEL_WIDTH = len("problem")
_TOPICS = ("machine", "software", "access", "model")


@click.command(
    epilog=examples(
        "milepost doctor",
        "milepost doctor path/to/checkpoint",
        "milepost doctor --config milepost.toml",
        "milepost doctor --port 8080 --max-connections 10000",
        "milepost doctor --json | jq '.findings[] | select(.level != \"ok\")'",
    )
)
@click.argument("model", required=False, shell_complete=models)
@click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Examine for the server of this file, its model and engine included.",
)
@click.option("--host", metavar="ADDRESS", help="Where it is to listen.  [default: 127.0.0.1]")
@click.option("--port", type=int, help="At which port.  [default: 8000]")
@click.option("--max-connections", type=int, metavar="N", help="Open at once.  [default: 4096]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def doctor(*, model: str | None, config_file: Path | None, as_json: bool, **options: Any) -> int:  # noqa: ANN401 - taken below
    """Say what this machine lacks for a server.

    What it can do, what is missing, and what to change. With MODEL also whether that is whole and fits, and
    how to serve it. No weight is read. Each line is ok, a note, a warning (slow, or will fail some day) or a
    problem (a server does not start). The exit code is 1 with a problem.
    """
    from milepost.cli.doctor.access import examine_access
    from milepost.cli.doctor.hardware import examine_hardware
    from milepost.cli.doctor.software import examine_software
    from milepost.cli.doctor.speed import examine_speed, measured

    file, server = NO_FILE, None
    with suppress(ModuleNotFoundError):  # without the server's packages, of which a finding tells
        file = NO_FILE if config_file is None else read_config_file(config_file)
        server = take_server_config(options, file)
    model = model if model is not None else file.engine.get("model")
    software = [*examine_software()]
    usable = worst_of(software) is not Level.PROBLEM
    findings = [*examine_hardware(server), *software, *([] if server is None else examine_access(server))]
    limits = measured() if usable else None
    if limits is not None:
        findings.append(examine_speed(limits))
    if model is not None and usable:
        from milepost.cli.doctor.model import examine_model

        folder = shipped_model() if model == SHIPPED_MODEL_NAME else Path(model)
        findings += examine_model(folder, limits, take_engine_config(folder, {}, file), config_file)
    findings.sort(key=lambda finding: _TOPICS.index(finding.topic))
    _show(findings, as_json=as_json)
    return EXIT_PROBLEM if worst_of(findings) is Level.PROBLEM else 0


def _show(findings: Sequence[Finding], *, as_json: bool) -> None:
    if as_json:
        answer = {"version": __version__, "worst": worst_of(findings), "findings": findings}
        write(msgspec.json.encode(answer).decode(), end="\n")
        return
    console = results()
    if not console.is_terminal:
        write("".join(f"{line}\n" for finding in findings for line in _plain(finding)))
        return
    for topic, group in groupby(findings, lambda finding: finding.topic):
        console.print(Text(topic, style="bold"))
        for finding in group:
            _print(console, finding)
    console.print(_summary(findings))


def _plain(finding: Finding) -> list[str]:
    """One line of what is found and, indented, one of what to do."""
    first = (
        f"{finding.level.value:<{_LEVEL_WIDTH}}  {finding.topic}: {finding.name}: {printable(finding.found)}"
    )
    return [first, *([f"{'':<{_LEVEL_WIDTH}}  -> {printable(finding.advice)}"] if finding.advice else [])]


def _print(console: Console, finding: Finding) -> None:
    line = Text(f"  {finding.level.value:<{_LEVEL_WIDTH}}  ", style=_STYLES[finding.level])
    line.append(f"{finding.name}: ", style="default bold").append(printable(finding.found), style="default")
    console.print(line, soft_wrap=True)
    if finding.advice:
        console.print(Text(f"  {'':<{_LEVEL_WIDTH}}  -> {printable(finding.advice)}"), soft_wrap=True)


def _summary(findings: Sequence[Finding]) -> Text:
    worst = worst_of(findings)
    said = {
        Level.PROBLEM: "A server would not start like this.",
        Level.WARNING: "A server starts. What stands behind the warnings is worth a look.",
    }
    return Text(said.get(worst, "Ready to serve."), style=_STYLES[worst])
