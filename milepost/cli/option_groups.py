"""A command whose help shows its options in groups, each under a heading of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

__all__ = ["GroupedCommand", "GroupedOption", "option_group", "with_options"]

F = TypeVar("F", bound=Callable[..., Any])


class GroupedOption(click.Option):
    """An option that says under which heading it stands.

    Args:
        group: the heading.
    """

    def __init__(self, *declarations: Any, group: str = "", **more: Any) -> None:  # noqa: ANN401 - click's own
        super().__init__(*declarations, **more)
        self.group = group


class GroupedCommand(click.Command):
    """Shows options under the headings of their groups, in the order in which groups first appear.

    Args:
        shared_heading: of options without a group, those that several commands share.
    """

    def __init__(self, *arguments: Any, shared_heading: str = "Options", **more: Any) -> None:  # noqa: ANN401
        super().__init__(*arguments, **more)
        self._shared_heading = shared_heading

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one section a group; that of --help comes last."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx) if isinstance(parameter, click.Option) else None
            if record is not None:
                sections.setdefault(self._heading(parameter), []).append(record)
        for heading, records in sections.items():
            with formatter.section(heading):
                formatter.write_dl(records)

    def _heading(self, parameter: click.Parameter) -> str:
        if isinstance(parameter, GroupedOption):
            return parameter.group
        return "Help" if "--help" in parameter.opts else self._shared_heading


def option_group(heading: str) -> Callable[..., Callable[[F], F]]:
    """`click.option` for options under `heading`."""

    def option(*declarations: str, **more: Any) -> Callable[[F], F]:  # noqa: ANN401 - click's own
        return click.option(*declarations, cls=GroupedOption, group=heading, **more)

    return option


def with_options(command: F, options: Sequence[Callable[[F], F]]) -> F:
    """A command with `options`, which its help shows in this order."""
    for option in reversed(options):  # what decorates last is shown first
        command = option(command)
    return command
