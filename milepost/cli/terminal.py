"""What appears where: results on stdout; bars, tables of figures and errors on stderr.

A bar is only drawn on a terminal.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn
from rich.table import Table

from milepost.error_text import printable

__all__ = [
    "figures_table",
    "interrupts_to",
    "notes",
    "open_missing_streams",
    "print_error",
    "print_notes",
    "print_rendered",
    "print_table",
    "progress_bar",
    "results",
    "write",
]


def open_missing_streams() -> None:
    """Stand-ins for standard streams that the process was started without: empty, or read by nobody."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            stream = Path(os.devnull).open(mode, encoding="utf-8")  # noqa: SIM115 - stays open for good
            setattr(sys, name, stream)


class _Notes(Console):
    def on_broken_pipe(self) -> None:
        """Nobody reads what accompanies a result; Rich would end the process for it."""
        self.quiet = True


def notes() -> Console:
    """For what accompanies a result: stderr."""
    return _Notes(stderr=True, highlight=False)


def results() -> Console:
    """For tables that are the result: stdout; as wide as they need to be in a pipe."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 200
    return console


def print_table(table: Table) -> None:
    """A table on stdout; in a pipe without the blanks that would fill its lines up."""
    print_rendered([table])


def print_rendered(parts: Iterable[RenderableType]) -> None:
    """Parts on stdout, one below the other, as `print_table`."""
    console = results()
    if console.is_terminal:
        console.print(*parts, sep="\n")
        return
    with console.capture() as captured:
        console.print(*parts, sep="\n")
    write("".join(f"{line.rstrip()}\n" for line in captured.get().splitlines()))


def print_error(message: str) -> None:
    """One error, as every command reports it."""
    try:
        # The result so far comes first where both go to the same place.
        sys.stdout.flush()
    except OSError:
        # What is left can't be written; the interpreter must not try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    print(f"milepost: error: {_shown(message)}", file=sys.stderr)


def print_notes(sentences: Sequence[str]) -> None:
    """What the user should know before the work starts, one line each."""
    # Nobody may read them, or their disk may be full: the work goes on all the same.
    with suppress(OSError):
        for sentence in sentences:
            print(f"milepost: note: {_shown(sentence)}", file=sys.stderr)


def _shown(message: str) -> str:
    """A message, which may have several lines and name files, without orders to the terminal."""
    return "\n".join(map(printable, message.split("\n")))


def write(text: str, *, end: str = "") -> None:
    """Text of a reply, at once; what the terminal's encoding lacks is escaped."""
    encoding = sys.stdout.encoding or "utf-8"
    sys.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding) + end)
    sys.stdout.flush()


@contextmanager
def progress_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A bar of bytes that vanishes when done; yields its (done, total) callback, None off a terminal."""
    console = notes()
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)

        def show(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield show


def figures_table(title: str, figures: dict[str, str]) -> Table:
    """Two columns: what, and how much."""
    table = Table(title=escape(title), title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    for name, value in figures.items():
        table.add_row(name, escape(value))
    return table


@contextmanager
def interrupts_to(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C calls `stop` instead of raising; a second one raises KeyboardInterrupt all the same."""

    def first(_signal: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        stop()

    before = signal.signal(signal.SIGINT, first)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
