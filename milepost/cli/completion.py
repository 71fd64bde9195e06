"""``milepost completion``: what makes a shell complete the words of a command line."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from milepost.cli.options import examples
from milepost.cli.terminal import write

__all__ = ["completion"]

SHELLS = ("bash", "zsh", "fish")
# What the script sets when it asks the command itself for words; click answers before anything runs.
VARIABLE = "_MILEPOST_COMPLETE"


@click.command(
    epilog=examples(
        "milepost completion bash > ~/.local/share/bash-completion/completions/milepost",
        "milepost completion zsh > ~/.zfunc/_milepost    # with fpath+=~/.zfunc before compinit in .zshrc",
        "milepost completion fish > ~/.config/fish/completions/milepost.fish",
        'eval "$(milepost completion bash)"               # in this shell only',
    )
)
@click.argument("shell", type=click.Choice(SHELLS))
def completion(*, shell: str) -> None:
    """Write a script for TAB in bash, zsh or fish.

    It completes commands, options and some of their values. Put it where the shell looks, as below, and start
    a new shell. Bash must be 4.4 or newer, with the package bash-completion for the folder below.
    """
    found = get_completion_class(shell)
    if found is None:  # pragma: no cover - click knows all three
        raise click.UsageError(f"This version of click knows no {shell}.")
    root = click.get_current_context().find_root()
    script = found(root.command, {}, "milepost", VARIABLE).source()
    write(script, end="" if script.endswith("\n") else "\n")
