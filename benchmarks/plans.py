"""How long a plan takes on the command line: the limits are a second, and ten for a search."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

from benchmarks.results import Result

__all__ = ["plans"]

ROUNDS = 3
COMMANDS = {
    "memory": "memory --compare",
    "memory, Qwen3-Next": "memory --compare --model qwen3-next-80b-a3b",
    "serve": "serve",
    "serve, 32 devices searched": "serve --gpus 32 --ttft 2 --tpot 50ms",
    "serve, 8 to 128 devices searched": "serve --gpus 8-128",
    "serve, 7,200 devices searched": "serve --gpus 7200",
    "disagg": "disagg",
    "moe": "moe --tp 8 --dp 4",
}


def plans() -> Iterator[Result]:
    """Seconds of `milepost plan`, start of the process included; it needs no model and no device."""
    samples: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):  # in turns: what else the machine does falls on all of them
        for name, words in COMMANDS.items():
            started = time.perf_counter()
            command = [sys.executable, "-m", "milepost", "plan", *words.split()]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            samples[name].append(time.perf_counter() - started)
    for name, seconds in samples.items():
        yield Result(benchmark="plans", subject=name, quantity="answer", unit="s", samples=seconds)
