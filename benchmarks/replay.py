"""How fast the simulator replays traces: one policy on all of a trace and on its first parts.

Time is the processor's, so that a busy machine says nearly the same as a quiet one. Each replay runs in a
process of its own, so that its peak of memory is its own. Reading the trace is not part of the time.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from benchmarks.on_traces import OnTraces
from benchmarks.peak_memory import peak_bytes
from benchmarks.results import Result
from milepost.config_json import read_model_spec
from milepost.sim.replay.setup import parts_of
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RunSpec
from milepost.sim.traces.reading import read_trace

__all__ = ["main", "replay"]

TRACES = ("mooncake-conversation.jsonl.gz", "claude-code-sessions.jsonl.gz")
MODEL = Path(__file__).resolve().parents[1] / "milepost" / "assets" / "models" / "kimi-k3"
POLICY, EVICTION = "adaptive", "value"
BUDGETS_GB = (400, 0)
"""Decimal GB of the arena; 0 for no limit"""
PARTS = (0.25, 0.5, 1.0)
RUNS = 1


def replay(options: OnTraces) -> Iterator[Result]:
    """Seconds, requests a second and memory of a replay: all of each trace, its first half and quarter."""
    for name in TRACES:
        for budget in BUDGETS_GB:
            for part in PARTS:
                yield from _one(options.folder / name, budget, part)


def _one(path: Path, budget_gb: int, part: float) -> Iterator[Result]:
    command = [sys.executable, "-m", "benchmarks.replay", str(path), str(budget_gb), str(part)]
    runs = [json.loads(subprocess.check_output(command)) for _ in range(RUNS)]
    where = f"{budget_gb} GB" if budget_gb else "unlimited"
    units = {"replay": "s", "requests a second": "1/s", "peak memory": "MB"}
    for quantity, unit in units.items():
        yield Result(
            benchmark="replay",
            subject=path.name.partition(".")[0],
            quantity=f"{quantity}, first {runs[0]['requests']:,} requests, {where}",
            unit=unit,
            samples=[run[quantity] for run in runs],
            settings={"policy": POLICY, "eviction": EVICTION, "budget_gb": budget_gb, "part": part},
        )


def main(path: Path, budget_gb: int, part: float) -> None:
    """Replay the first `part` of a trace and print what it took as JSON."""
    trace = read_trace(path)
    count = int(part * len(trace.requests))
    trace = msgspec.structs.replace(trace, requests=trace.requests[:count])
    spec = RunSpec(budget_bytes=budget_gb * 10**9 or None, policy=POLICY, eviction=EVICTION)
    simulation = Simulation(spec, trace, parts_of(spec, trace, read_model_spec(MODEL)))
    started = time.process_time()
    result = simulation.run()
    seconds = time.process_time() - started
    print(
        json.dumps(
            {
                "requests": result.requests,
                "replay": seconds,
                "requests a second": result.requests / seconds,
                "peak memory": peak_bytes() / 1e6,
                "hit_rate": result.hit_rate,
            }
        )
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
