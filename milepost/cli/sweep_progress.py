"""The progress of a sweep: a bar of requests over all points, on a terminal only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from milepost.cli.terminal import notes

__all__ = ["sweep_bar"]


@contextmanager
def sweep_bar(points: int, requests: int) -> Iterator[tuple[Callable[[], None], Callable[[int], None]]]:
    """A bar that vanishes when done.

    Yields:
        what is called with each point that is done, and with the requests served since.
    """
    console = notes()
    if not console.is_terminal:
        yield (lambda: None), (lambda _count: None)
        return
    columns = (
        TextColumn("{task.fields[done]} of {task.fields[points]} points"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("requests, done in"),
        TimeRemainingColumn(compact=True),
    )
    # Drawn when something happens: a thread that draws would be alive when processes are forked.
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as progress:
        task = progress.add_task("", total=points * requests, done=0, points=points)

        def point() -> None:
            progress.update(task, done=progress.tasks[task].fields["done"] + 1, refresh=True)

        def served(count: int) -> None:
            progress.update(task, advance=count, refresh=True)

        yield point, served
