"""Where a plan goes: tables on stdout, or JSON or explanations in their place, and files beside them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from milepost.cli.option_groups import option_group
from milepost.cli.terminal import print_rendered, write
from milepost.planner.render.terminal import rendered
from milepost.planner.report import Report
from milepost.planner.worksheet import explain, listed

__all__ = ["Outputs", "finish", "output_options", "take_outputs"]

F = TypeVar("F", bound=Callable[..., Any])

STDOUT = "-"
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
        "--explain",
        multiple=True,
        metavar="NAME",
        help="In place of tables, where a number comes from; `--explain list` for all names.",
    ),
)


def output_options(command: F) -> F:
    """The options of what is shown; the command hands its keyword arguments to `take_outputs`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


class Outputs(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown and written.

    Attributes:
        json: a file, "-" for stdout, None for nowhere.
        explain: names of numbers, or "list".
    """

    json: str | None = None
    explain: tuple[str, ...] = ()

    @property
    def on_stdout(self) -> bool:
        """Whether JSON is on stdout, in place of tables."""
        return self.json == STDOUT


def take_outputs(options: dict[str, Any]) -> Outputs:
    """Remove what `Outputs` holds from `options`.

    Raises:
        click.UsageError: two things want to be alone on stdout.
    """
    outputs = Outputs(**{name: options.pop(name) for name in Outputs.__struct_fields__})
    if outputs.on_stdout and outputs.explain:
        raise click.UsageError("--json without a FILE and --explain both take stdout. Give --json a FILE.")
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
        _write_json(plan, outputs)
    if explanations:
        write("\n\n".join(explanations), end="\n")
    elif not outputs.on_stdout:
        print_rendered(rendered(report))


def _explanation(report: Report, name: str) -> str:
    return listed(report.derivations) if name == LIST else explain(report.derivations, name)


def _write_json(plan: msgspec.Struct, outputs: Outputs) -> None:
    from milepost.planner.render.as_json import to_json
    from milepost.sim.reports.files import save

    text = to_json(plan)
    if outputs.json is None or outputs.on_stdout:
        write(text)
    else:
        save(Path(outputs.json), text.encode())
