"""Where a plan goes: tables on stdout, or JSON or explanations in their place, and files beside them."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from milepost.cli.option_groups import option_group, with_options
from milepost.cli.output_files import STDOUT, check_output_files
from milepost.cli.terminal import print_rendered, results, write
from milepost.planner.render.terminal import rendered
from milepost.planner.report import Report
from milepost.planner.worksheet import explain, listed

__all__ = ["Outputs", "finish", "output_options", "take_outputs"]

F = TypeVar("F", bound=Callable[..., Any])

LIST = "list"
_results = option_group("Results")

_OPTIONS = (
    _results(
        "--json",
        metavar="FILE",
        is_flag=False,
        flag_value=STDOUT,
        help="One object, with the derivation of every number; without FILE on stdout, in place of tables.",
    ),
    _results(
        "--html",
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="One page with plots and every derivation, which needs no network; needs plotly.",
    ),
    _results(
        "--explain",
        multiple=True,
        metavar="NAME",
        help="In place of tables, where a number comes from; `--explain list` for all names.",
    ),
)


def output_options(command: F) -> F:
    """The options of what is shown; the command hands its keyword arguments to `take_outputs`."""
    return with_options(command, _OPTIONS)


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown and written.

    Attributes:
        json: a file, "-" for stdout, None for nowhere.
        html: a file or None.
        explain: names of numbers, or "list".
    """

    json: str | None = None
    html: Path | None = None
    explain: tuple[str, ...] = ()

    @property
    def on_stdout(self) -> bool:
        """Whether JSON is on stdout, in place of tables."""
        return self.json == STDOUT

    @property
    def files(self) -> dict[str, Path]:
        """Options and the files that they name."""
        given = {
            "--json": None if self.json is None or self.on_stdout else Path(self.json),
            "--html": self.html,
        }
        return {option: path for option, path in given.items() if path is not None}


def take_outputs(options: dict[str, Any]) -> Outputs:
    """Remove what `Outputs` holds from `options`; whether files can be written is known before the work.

    Raises:
        ConfigError: a file can't be written, is given twice, or needs what is not installed.
        click.UsageError: two things want to be alone on stdout.
    """
    outputs = Outputs(**{name: options.pop(name) for name in Outputs.__struct_fields__})
    if outputs.on_stdout and outputs.explain:
        raise click.UsageError("--json without a FILE and --explain both take stdout. Give --json a FILE.")
    check_output_files(outputs.files)
    return outputs


def finish(plan: msgspec.Struct, report: Report, outputs: Outputs) -> None:
    """Show a plan and write its files.

    Args:
        plan: the answer, which JSON is made of.
        report: how it is shown; its derivations are those of the plan.
        outputs: what was asked for.

    Raises:
        ConfigError: an explanation is asked for a name that the plan lacks.
        InputError: a file can't be written.
    """
    explanations = [_explanation(report, name) for name in outputs.explain]
    if outputs.json is not None:
        _write_json(plan, outputs.files.get("--json"))
    if outputs.html is not None:
        from milepost.planner.render.page import write_html

        write_html(report, outputs.html, command=shlex.join(["milepost", *sys.argv[1:]]))
    if explanations:
        write("\n\n".join(explanations), end="\n")
    elif not outputs.on_stdout:
        print_rendered(rendered(report, width=results().width))


def _explanation(report: Report, name: str) -> str:
    return listed(report.derivations) if name == LIST else explain(report.derivations, name)


def _write_json(plan: msgspec.Struct, file: Path | None) -> None:
    from milepost.planner.render.as_json import to_json
    from milepost.sim.reports.files import save

    text = to_json(plan)
    if file is None:
        write(text)
    else:
        save(file, text.encode())
