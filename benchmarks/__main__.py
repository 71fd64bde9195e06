"""The runner: ``python -m benchmarks NAME... [--json FILE] [--traces DIR]``."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.admission import admission
from benchmarks.control_plane import control_plane
from benchmarks.cpu_peers.control import cpu_control
from benchmarks.cpu_peers.engines import cpu_decode, cpu_models, cpu_prefill
from benchmarks.cpu_peers.options import INSTALL, Peers
from benchmarks.cpu_peers.servers import cpu_reuse, cpu_served, cpu_start
from benchmarks.engine_runs import decode, first_token, memory, prefill
from benchmarks.kernels import kernels
from benchmarks.load.generators import GENERATORS
from benchmarks.load.load import INSTALL as INSTALL_LOAD
from benchmarks.load.load import LoadOptions, load
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

PEER_BENCHMARKS: dict[str, Callable[[Peers], Iterator[Result]]] = {
    "cpu-models": cpu_models,
    "cpu-decode": cpu_decode,
    "cpu-prefill": cpu_prefill,
    "cpu-served": cpu_served,
    "cpu-reuse": cpu_reuse,
    "cpu-control": cpu_control,
    "cpu-start": cpu_start,
}
"""Those that need other people's engines: ``all`` runs them if there are any."""

LOAD_BENCHMARKS: dict[str, Callable[[LoadOptions], Iterator[Result]]] = {"load": load}
"""Those that need other people's load generators, in an environment of their own."""


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmarks that are named, print a table and write the JSON that is asked for."""
    parser = _parser()
    options = parser.parse_args(arguments)
    names = options.names
    if "all" in names:
        names = [
            *BENCHMARKS,
            *(TRACE_BENCHMARKS if options.traces else ()),
            *(PEER_BENCHMARKS if options.peers else ()),
        ]
    lacking = [name for name in names if name in TRACE_BENCHMARKS and options.traces is None]
    if lacking:
        parser.error(f"{', '.join(lacking)} needs --traces DIR; its module says which files")
    lacking = [name for name in names if name in PEER_BENCHMARKS and options.peers is None]
    if lacking:
        parser.error(f"{', '.join(lacking)} needs --peers DIR; make it with: {INSTALL} DIR")
    if options.peers is None and any(name in LOAD_BENCHMARKS for name in names):
        parser.error(f"load needs --peers DIR; make it with: {INSTALL_LOAD} DIR")
    results: list[Result] = []
    for name in names:
        print(f"{name} ...", file=sys.stderr)
        results.extend(_run(name, options))
    print(format_table(results))
    if options.json is not None:
        write_json(options.json, describe_machine(), results)
    return 0


def _run(name: str, options: argparse.Namespace) -> Iterator[Result]:
    if name in BENCHMARKS:
        return BENCHMARKS[name]()
    if name in LOAD_BENCHMARKS:
        generators = options.generator or [*GENERATORS]
        return LOAD_BENCHMARKS[name](LoadOptions(options.peers, generators, options.quick))
    if name in PEER_BENCHMARKS:
        return PEER_BENCHMARKS[name](Peers(options.peers, options.quick, options.only))
    return TRACE_BENCHMARKS[name](OnTraces(options.traces, options.peer_python, options.quick))


def _parser() -> argparse.ArgumentParser:
    every = {**BENCHMARKS, **TRACE_BENCHMARKS, **PEER_BENCHMARKS, **LOAD_BENCHMARKS}
    about = "\n".join(f"  {name:<17}{function.__doc__}" for name, function in every.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"Measure Milepost.\n\nbenchmarks:\n  {'all':<17}Every one of these.\n{about}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="+", metavar="NAME", choices=["all", *every])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write machine, commit and samples there")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="folder of recorded traffic")
    parser.add_argument("--quick", action="store_true", help="of traffic a part, of peers fewer rounds")
    parser.add_argument(
        "--only", default="", metavar="TEXT", help="of peers, cases so named, such as 'kimi_k3, float32'"
    )
    parser.add_argument("--peers", type=Path, metavar="DIR", help=f"environment that {INSTALL!r} made")
    parser.add_argument(
        "--generator",
        action="append",
        choices=[*GENERATORS],
        help="of load, which; may be repeated; all by default",
    )
    parser.add_argument(
        "--peer-python",
        type=Path,
        metavar="PATH",
        help="a Python that has kvcache-simulator, for simulator-peers; without, it is installed from PyPI",
    )
    return parser


if __name__ == "__main__":
    # As Ctrl-C does, so that processes which a benchmark has started end with it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
