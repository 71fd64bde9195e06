"""Wakes the consumers of outputs from a thread of its own.

To wake an event loop is a system call, around which Python gives its one turn away: the loop would take
it and serve all its clients before the next step is even planned. This thread gets its turn while that
step computes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable
from queue import SimpleQueue

from milepost.engine.output_stream import OutputStream

__all__ = ["Waker"]


class Waker:
    """Tells streams that there is mail; `wake` costs its caller next to nothing and never waits."""

    def __init__(self) -> None:
        self._waiting: SimpleQueue[list[OutputStream] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="milepost-waker", daemon=True)
        self._thread.start()

    def wake(self, streams: list[OutputStream]) -> None:
        """Wake the consumers of these streams soon."""
        if streams:
            self._waiting.put(streams)

    def stop(self) -> None:
        """Wake whoever is still to be woken, then end the thread."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        while (streams := self._waiting.get()) is not None:
            for loop in {id(stream.loop): stream.loop for stream in streams}.values():
                # One call a loop. A loop that has just been closed raises; the next delivery sees it.
                with contextlib.suppress(RuntimeError):
                    loop.call_soon_threadsafe(_wake_all, [one for one in streams if one.loop is loop])


def _wake_all(streams: Iterable[OutputStream]) -> None:
    for stream in streams:
        stream.wake()
