"""Milepost's scheduler with its cache and no model: RUNNING CONTEXT STEPS."""

from __future__ import annotations

import gc
import sys
from typing import Any

from benchmarks.control_plane import decoding_plane
from benchmarks.cpu_peers.protocol import serve_lines
from benchmarks.scheduler_cost import LAYOUT

__all__ = ["ControlWorker"]


class ControlWorker:
    """`running` requests that share `context` tokens and are in steady decode."""

    def __init__(self, running: int, context: int, steps: int) -> None:
        self._running = running
        self._plane = decoding_plane(running, context, steps)
        gc.collect()
        gc.freeze()

    def about(self) -> dict[str, Any]:
        """Settings that a reader must know to compare."""
        return {"block": LAYOUT.block_size, "running": self._plane.scheduler.stats().running}

    def steps(self, count: int) -> list[float]:
        """Seconds of `schedule` and `update` in each of so many steps."""
        seconds = [sum(self._plane.step()) for _ in range(count)]
        stats = self._plane.scheduler.stats()
        if (stats.running, stats.preemptions) != (self._running, 0):
            raise RuntimeError(
                f"{stats.running} of {self._running} requests ran, {stats.preemptions} stopped"
            )
        return seconds


if __name__ == "__main__":
    serve_lines(lambda: ControlWorker(*(int(argument) for argument in sys.argv[1:4])))
