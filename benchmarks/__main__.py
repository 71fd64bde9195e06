"""The runner: ``python -m benchmarks NAME... [--json FILE] [--traces DIR]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.admission import admission
from benchmarks.control_plane import control_plane
from benchmarks.engine_runs import decode, first_token, memory, prefill
from benchmarks.kernels import kernels
from benchmarks.machine import describe_machine
from benchmarks.on_traces import OnTraces
from benchmarks.planner import planner
from benchmarks.plans import plans
from benchmarks.policies import policies
from benchmarks.prefix_keys import keys
from benchmarks.replay import replay
from benchmarks.results import Result, format_table, write_json
from benchmarks.reuse import reuse
from benchmarks.scheduler_cost import scheduler
from benchmarks.simulator_peers import simulator_peers
from benchmarks.state_slots import state_slots

__all__ = ["BENCHMARKS", "main"]

Benchmark = Callable[[], Iterator[Result]]

BENCHMARKS: dict[str, Benchmark] = {
    "prefill": prefill,
    "decode": decode,
    "first-token": first_token,
    "memory": memory,
    "scheduler": scheduler,
    "admission": admission,
    "keys": keys,
    "reuse": reuse,
    "control-plane": control_plane,
    "kernels": kernels,
    "planner": planner,
    "plans": plans,
}

TRACE_BENCHMARKS: dict[str, Callable[[OnTraces], Iterator[Result]]] = {
    "policies": policies,
    "replay": replay,
    "simulator-peers": simulator_peers,
    "slots": state_slots,
}
"""Those that need recorded traffic, which is not in the source: ``all`` runs them if there is any."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks that are named, print a table and write the JSON that is asked for."""
    parser = _parser()
    options = parser.parse_args(arguments)
    names = options.names
    if "all" in names:
        names = [*BENCHMARKS, *(TRACE_BENCHMARKS if options.traces else ())]
    lacking = [name for name in names if name in TRACE_BENCHMARKS and options.traces is None]
    if lacking:
        parser.error(f"{', '.join(lacking)} needs --traces DIR; its module says which files")
    results: list[Result] = []
    for name in names:
        print(f"{name} ...", file=sys.stderr)
        if name in BENCHMARKS:
            results.extend(BENCHMARKS[name]())
        else:
            given = OnTraces(options.traces, options.peer_python, options.quick)
            results.extend(TRACE_BENCHMARKS[name](given))
    print(format_table(results))
    if options.json is not None:
        write_json(options.json, describe_machine(), results)
    return 0


def _parser() -> argparse.ArgumentParser:
    every = {**BENCHMARKS, **TRACE_BENCHMARKS}
    about = "\n".join(f"  {name:<17}{function.__doc__}" for name, function in every.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measure Milepost.\n\nbenchmarks:\n  {'all':<17}Every one of these.\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", metavar="NAME", choices=["all", *every])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, commit and samples there")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="folder of recorded traffic")
    parser.add_argument("--quick", action="store_true", help="of recorded traffic only a part")
    parser.add_argument(
        "--peer-python",
        type=Path,
        metavar="PATH",
        help="a Python that has kvcache-simulator, for simulator-peers; without, it is installed from PyPI",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
