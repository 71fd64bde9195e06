"""What deciding a step costs, beside vLLM's own scheduler; no model runs on either side."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from benchmarks.cpu_peers.alternating import OURS, alternate, compared
from benchmarks.cpu_peers.options import Peers
from benchmarks.cpu_peers.workers import Worker
from benchmarks.results import Result

__all__ = ["cpu_control"]

RUNNING = 256
CONTEXT = 131_072
TURN = 100
"""Steps of a turn; its median counts."""


def cpu_control(peers: Peers) -> Iterator[Result]:
    """Milliseconds a step to schedule, match, allocate and update 256 requests at 128k, beside vLLM's."""
    rounds = peers.rounds
    # The first turns of each side are not counted.
    arguments = [RUNNING, CONTEXT, (rounds + 2) * TURN]
    module = "benchmarks.cpu_peers"
    commands = {
        OURS: [sys.executable, "-m", f"{module}.control_worker", *arguments],
        "vLLM": [peers.python, "-m", f"{module}.vllm_worker", *arguments],
    }
    with ExitStack() as stack:
        workers = {name: stack.enter_context(Worker(name, command)) for name, command in commands.items()}
        turns = {name: partial(_turn, worker) for name, worker in workers.items()}
        alternate(turns, 1)
        samples = alternate(turns, rounds)
        settings = {name: worker.call("about") for name, worker in workers.items()}
    yield from compared(
        "cpu-control",
        "Kimi K3, TP8",
        f"step of {RUNNING} requests at {CONTEXT:,} tokens",
        "ms",
        samples,
        lower_is_better=True,
        settings=settings | {"steps": TURN},
    )


def _turn(worker: Worker) -> float:
    seconds: list[float] = worker.call("steps", count=TURN)
    return 1e3 * statistics.median(seconds)
