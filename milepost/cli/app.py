"""The group of commands, and how whatever goes wrong becomes one line and an exit code.

0     done
1     a bug of Milepost's own (with its traceback), or nobody reads the output any more; of `milepost doctor`,
      a problem
2     something given can't be used: one line "milepost: error: ..." that says what to do
130   interrupted (Ctrl-C)
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Sequence

import click
from click.exceptions import NoArgsIsHelpError

from milepost import __version__
from milepost.cli.bench import bench
from milepost.cli.calibrate import calibrate
from milepost.cli.chat import chat
from milepost.cli.completion import completion
from milepost.cli.doctor import doctor
from milepost.cli.explain import explain
from milepost.cli.export_toy import export_toy
from milepost.cli.generate import generate
from milepost.cli.inspect_checkpoint import inspect_checkpoint
from milepost.cli.options import examples
from milepost.cli.plan.group import plan
from milepost.cli.serve import serve
from milepost.cli.simulate import simulate
from milepost.cli.terminal import open_missing_streams, print_error, write
from milepost.cli.trace import trace
from milepost.cli.vllm_options import of_vllm
from milepost.errors import InvariantError, MilepostError

__all__ = ["EXIT_INTERRUPTED", "EXIT_WRONG_INPUT", "commands", "main", "run"]

EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130
DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@click.group(
    epilog=examples(
        'milepost generate --chat --prompt "The code for amber is 7412. What is the code for amber?"',
        "milepost chat",
        "milepost serve --port 8000",
        "milepost simulate trace.jsonl.gz",
        "milepost inspect path/to/checkpoint",
    ),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="milepost")
def commands() -> None:
    """Serve hybrid linear-attention language models: Kimi K3 and Kimi-Linear.

    MODEL is a checkpoint folder in Hugging Face layout; without one, commands use the small trained
    model that comes with Milepost.
    """


for command in (
    *(generate, chat, serve, explain, simulate, trace, plan),
    *(inspect_checkpoint, doctor, bench, calibrate, export_toy, completion),
):
    commands.add_command(command)


def main() -> None:
    """Run the command line of this process and exit."""
    open_missing_streams()
    sys.exit(run())


def run(arguments: Sequence[str] | None = None) -> int:
    """Run one command line; returns the exit code.

    Args:
        arguments: what stands after ``milepost``; None takes the process's.
    """
    words = [*(sys.argv[1:] if arguments is None else arguments)]
    try:
        code = commands.main(args=words or ["--help"], prog_name="milepost", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except NoArgsIsHelpError as error:
        write(error.format_message(), end="\n")
        return 0
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "milepost"
        message = _of_another_engine(error) or error.format_message()
        end = "" if message.endswith((".", "?", "?)")) else "."
        print_error(f"{message}{end} See '{where} --help'.")
    except click.ClickException as error:
        print_error(error.format_message())
    except InvariantError:
        raise  # a bug: its traceback is what a report needs
    except MilepostError as error:
        print_error(str(error))
    except OSError as error:
        if error.filename is None and error.errno not in DISK_IS_FULL:
            raise  # nothing that the user named, and nothing that the user can change
        print_error(f"{error.filename or 'The output'}: {error.strerror}.")
    return EXIT_WRONG_INPUT


def _of_another_engine(error: click.UsageError) -> str | None:
    """What to say to an option that another engine's server has; None for all other mistakes."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None and error.ctx.command is serve:
        return of_vllm(error.option_name)
    return None
