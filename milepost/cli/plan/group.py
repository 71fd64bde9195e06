"""``milepost plan``: its commands by name, each imported when it is asked for."""

from __future__ import annotations

from importlib import import_module

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


# Arguments that are not used are those of click's own signatures.
class _PlanGroup(click.Group):
    """Imports a command's module when the command is run or asked for its help, no other one's."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names in the order in which a deployment is thought through."""
        return [*PLANS]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """The command of a name; None if there is none."""
        if cmd_name not in PLANS:
            return None
        command: click.Command = getattr(import_module(f"milepost.cli.plan.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Write the commands' lines without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([*PLANS.items()])


@click.group(
    cls=_PlanGroup,
    epilog=examples(
        "milepost plan memory --model kimi-k3 --tp 8 --compare",
        "milepost plan serve --gpus 32 --hardware gb300 --ttft 2 --tpot 50ms --price 4",
        "milepost plan disagg --lengths p50=8k,p90=32k --prefill-hardware h200 --network 12.5GB",
        "milepost plan moe --dp 32 --html moe.html",
        "milepost plan memory --model path/to/config.json --json | jq .",
        "milepost plan memory --tp 8 --explain state_bytes",
    ),
)
def plan() -> None:
    """Size a deployment before it is bought or booked.

    From a model's config.json, hardware and a goal: memory, speed, cost. Nothing is run, and every number
    says with --explain which formula and inputs it comes from. docs/plan.md says what is assumed.
    """
