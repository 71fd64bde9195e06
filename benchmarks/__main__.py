"""The runner: ``python -m benchmarks NAME... [--json FILE] [--traces DIR]``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.admission import admission
from benchmarks.control_plane import control_plane
from benchmarks.engine_runs import decode, first_token, memory, prefill
from benchmarks.machine import describe_machine
from benchmarks.prefix_keys import keys
from benchmarks.replay import replay
from benchmarks.results import Result, format_table, write_json
from benchmarks.reuse import reuse
from benchmarks.scheduler_cost import scheduler

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
}

TRACE_BENCHMARKS: dict[str, Callable[[Path], Iterator[Result]]] = {"replay": replay}
"""Those that need recorded traffic, which does not come with the source."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks that are named, print a table and write the JSON that is asked for."""
    parser = _parser()
    options = parser.parse_args(arguments)
    on_traces = [name for name in options.names if name in TRACE_BENCHMARKS]
    if on_traces and options.traces is None:
        parser.error(f"{on_traces[0]} needs --traces, the folder of the traces")
    names = list(BENCHMARKS) if "all" in options.names else options.names
    results: list[Result] = []
    for name in names:
        print(f"{name} ...", file=sys.stderr)
        if name in TRACE_BENCHMARKS:
            results.extend(TRACE_BENCHMARKS[name](options.traces))
        else:
            results.extend(BENCHMARKS[name]())
    print(format_table(results))
    if options.json is not None:
        write_json(options.json, describe_machine(), results)
    return 0


def _parser() -> argparse.ArgumentParser:
    every = {**BENCHMARKS, **TRACE_BENCHMARKS}
    about = "\n".join(f"  {name:<15}{function.__doc__}" for name, function in every.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measure Milepost.\n\nbenchmarks:\n  {'all':<15}All that need no traces.\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", metavar="NAME", choices=["all", *every])
    parser.add_argument("--traces", type=Path, metavar="DIR", help="folder of recorded traffic")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, commit and samples there")
    return parser


if __name__ == "__main__":
    sys.exit(main())
