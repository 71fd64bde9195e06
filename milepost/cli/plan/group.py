"""``milepost plan``: its commands by name, each imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

import click

from milepost.cli.options import examples

__all__ = ["PLANS", "plan"]

PLANS = {
    "memory": "How states and KV lie in memory: page sizes, what fits, the largest batch.",
    "serve": "How fast a deployment answers and what a token costs; search for a better one.",
    "disagg": "Prefill and decode on machines of their own: bytes, bandwidth, ratio, when it pays.",
    "moe": "Expert parallelism: bytes moved, experts read, imbalance, waves, LatentMoE's tails.",
}
"""Commands, each in the module `milepost.cli.plan.NAME`, and what `--help` of the group says of it."""


class _PlanGroup(click.Group):
    """Imports a command's module when the command is run or asked for its help, no other one's."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Names in the order in which a deployment is thought through."""
        return [name for name in PLANS if find_spec(f"milepost.cli.plan.{name}")]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name; None if there is none."""
        if cmd_name not in self.list_commands(ctx):
            return None
        command: click.Command = getattr(import_module(f"milepost.cli.plan.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands' lines without importing them."""
        if lines := [(name, PLANS[name]) for name in self.list_commands(ctx)]:
            with formatter.section("Commands"):
                formatter.write_dl(lines)


@click.group(
    cls=_PlanGroup,
    epilog=examples(
        "milepost plan memory --model kimi-k3 --tp 8",
        "milepost plan memory --model path/to/config.json --json | jq .",
        "milepost plan memory --explain list",
    ),
)
def plan() -> None:
    """Size a deployment before it is bought or booked.

    From a model's config.json, hardware and a goal: memory, speed, cost. Nothing is run, and every number
    says with --explain which formula and inputs it comes from. docs/plan.md says what is assumed.
    """
