"""The simulator beside others on the conversation trace, in Kimi K3's sizes: hit rates in percent.

    kvcache-simulator   run here, in an environment of its own; only the second half of the requests counts
    stateless           our model of it, on the same requests: the two must agree within 0.3 points
    published           figures of the same trace and sizes from others' tools, and ours beside them

The trace is Mooncake's (kvcache-ai/Mooncake, FAST25-release/traces, Apache-2.0), a file
``mooncake-conversation.jsonl.gz`` in the folder that ``--traces`` names. The other simulator is installed
from PyPI into a virtual environment in the user's cache folder, unless ``--peer-python`` names a Python
that has it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.on_traces import OnTraces
from benchmarks.results import Result
from milepost.config_json import read_model_spec
from milepost.errors import ConfigError
from milepost.model_spec import ModelSpec
from milepost.sim.presets import find_preset
from milepost.sim.replay.setup import parts_of
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RunSpec
from milepost.sim.traces.reading import read_trace
from milepost.sim.traces.trace import Trace

__all__ = ["PublishedRow", "peer_hit_rates", "simulator_peers"]

NAME = "simulator-peers"
TRACE = "mooncake-conversation.jsonl.gz"
MODEL = Path(__file__).resolve().parents[1] / "milepost" / "assets" / "models" / "kimi-k3"
PEER = "kvcache-simulator==0.1.3"
BLOCK = 512
GIB = 1 << 30
STATELESS_BUDGETS = (200, 400, 800)
BUDGETS = (200, 400, 800, 1600)


@dataclass(frozen=True)
class PublishedRow:
    """Figures of another tool on the whole trace, by `BUDGETS`, and the run of ours that goes beside them.

    Attributes:
        name: of policy and tool.
        percent: hit rates.
        preset: ours, or
        policy: ours, with
        eviction: ours.
    """

    name: str
    percent: tuple[float, ...]
    preset: str = ""
    policy: str = ""
    eviction: str = ""


PUBLISHED = (
    PublishedRow("leaf + branch, LRU", (13.67, 21.98, 28.99, 35.12), policy="branch", eviction="lru"),
    PublishedRow("Marconi, alpha 0", (13.88, 22.37, 29.70, 35.27), preset="marconi"),
    PublishedRow("Marconi, alpha 1", (9.0, 13.1, 19.9, 27.2), preset="marconi(alpha=1)"),
    PublishedRow("every 512, LRU", (4.4, 4.6, 5.5, 8.1), policy="every(512)", eviction="lru"),
    # Measured with ai-dynamo-runtime 1.6.1's mocker: no state, the whole trace. It is not run here.
    PublishedRow("Dynamo mocker, no state", (25.7, 32.9, 36.5), preset="stateless"),
)


def simulator_peers(options: OnTraces) -> Iterator[Result]:
    """Hit rates on a trace: kvcache-simulator and ours on the same requests, published rows and ours."""
    path = options.folder / TRACE
    trace, model = read_trace(path), read_model_spec(MODEL)
    python = options.peer_python or _installed_peer()
    theirs = peer_hit_rates(python, path, STATELESS_BUDGETS)
    for budget in STATELESS_BUDGETS:
        spec = RunSpec(preset="stateless", budget_bytes=budget * 10**9, warm_up=0.5)
        ours = _percent(spec, trace, model)
        subject = f"{budget} GB, second half"
        yield _result(subject, "kvcache-simulator 0.1.3", theirs[budget])
        yield _result(subject, "stateless", ours)
        yield _result(subject, "stateless less kvcache-simulator", ours - theirs[budget], "points")
    for row in PUBLISHED:
        for budget, published in zip(BUDGETS, row.percent, strict=False):
            spec = RunSpec(
                preset=row.preset,
                policy=row.policy or "adaptive",
                eviction=row.eviction or "value",
                budget_bytes=budget * 10**9,
            )
            ours = _percent(spec, trace, model)
            subject = f"{budget} GB"
            yield _result(subject, f"{row.name}: published", published)
            yield _result(subject, f"{row.name}: ours", ours)
            yield _result(subject, f"{row.name}: ours less published", ours - published, "points")


def peer_hit_rates(
    python: Path, trace: Path, budgets_gb: Sequence[float], *, model: str = "kimi-k3", block_size: int = BLOCK
) -> dict[float, float]:
    """Percent that kvcache-simulator finds with LRU, by decimal gigabytes; of the second half alone.

    It takes GiB, rounds a budget down to whole blocks, and leaves out budgets that the first half does not
    fill.

    Raises:
        ConfigError: it failed; its own words are in the message.
    """
    command = [str(python), "-m", "kvcache_sim", "run", "--trace", str(trace), "--model", model]
    command += ["--block-size", str(block_size), "--policies", "lru", "--format", "json", "--no-progress"]
    command += ["--budgets-gib", ",".join(repr(budget * 1e9 / GIB) for budget in budgets_gb)]
    command += ["--backend", "cpp" if shutil.which("c++") else "python"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(f"kvcache-simulator failed: {done.stderr.strip()[-500:]}")
    points = json.loads(done.stdout)["points"]
    # It sorts the budgets that it is given.
    known = sorted(budgets_gb)
    return {known[at]: 100 * point["results"]["lru"]["hitRate"] for at, point in enumerate(points)}


def _percent(spec: RunSpec, trace: Trace, model: ModelSpec) -> float:
    preset = find_preset(spec.preset)
    parts = parts_of(spec, trace, model) if preset is None else preset.parts(spec, trace, model)
    percent = 100 * Simulation(spec, trace, parts).run().hit_rate
    # A run takes some seconds, and the table comes last.
    print(f"  {spec.preset or spec.policy}, {spec.budget_bytes:,} bytes: {percent:.2f} %", file=sys.stderr)
    return percent


def _result(subject: str, quantity: str, value: float, unit: str = "%") -> Result:
    settings = {"trace": TRACE, "model": "kimi-k3"}
    return Result(
        benchmark=NAME,
        subject=subject,
        quantity=quantity,
        unit=unit,
        samples=[value],
        settings=dict(settings),
    )


def _installed_peer() -> Path:
    """The Python of an environment with kvcache-simulator, made when it is not there."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "milepost" / PEER.replace("==", "-")
    python = folder / "bin" / "python"
    if not (folder / "installed").exists():
        print(f"  installing {PEER} into {folder}", file=sys.stderr)
        venv.create(folder, with_pip=True, clear=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", PEER], check=True)
        (folder / "installed").touch()
    return python
