"""A sweep over processes: the same results as in one, in the same order, and clean ends of all kinds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from milepost.errors import ConfigError, ExecutionError, InvariantError, RequestTooLargeError
from milepost.sim.replay.setup import parts_of
from milepost.sim.replay.simulation import Simulation
from milepost.sim.runs import RequestOutcome, RunResult, RunSpec
from milepost.sim.sweep import processes
from milepost.sim.sweep.sweep import SweepCallbacks, run_sweep
from milepost.sim.traces.trace import Trace
from tests.model_specs import SMALL
from tests.repository.paths import ROOT
from tests.sim.block_traces import random_trace

OnRequest = Callable[[RequestOutcome], None] | None
SPECS = [
    RunSpec(budget_bytes=1_000_000, policy=policy, eviction=eviction)
    for policy in ("last", "turns")
    for eviction in ("lru", "value")
]


def run_small(spec: RunSpec, trace: Trace, on_request: OnRequest = None) -> RunResult:
    return Simulation(spec, trace, parts_of(spec, trace, SMALL), None, on_request).run()


def untimed(results: list[RunResult]) -> list[RunResult]:
    return [msgspec.structs.replace(result, wall_seconds=0.0) for result in results]


@pytest.fixture(scope="module")
def trace() -> Trace:
    return random_trace(3, num_requests=300)


def test_processes_find_what_one_finds(trace: Trace) -> None:
    alone = run_sweep(SPECS, trace, jobs=1, run=run_small)
    assert [(result.policy, result.eviction) for result in alone] == [(s.policy, s.eviction) for s in SPECS]
    assert len({result.hit_tokens for result in alone}) > 1
    assert untimed(run_sweep(SPECS, trace, jobs=2, run=run_small)) == untimed(alone)
    assert untimed(run_sweep(SPECS, trace, jobs=99, run=run_small)) == untimed(alone)


def test_fresh_processes_find_it_too_where_forks_are_not_used(
    trace: Trace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("milepost.sim.sweep.processes.START_METHOD", "spawn")
    few = SPECS[:2]
    assert untimed(run_sweep(few, trace, jobs=2, run=run_small)) == untimed(
        run_sweep(few, trace, jobs=1, run=run_small)
    )


@pytest.mark.parametrize("jobs", [1, 2])
def test_everything_is_told(trace: Trace, jobs: int) -> None:
    told: dict[int, RunResult] = {}
    outcomes: dict[int, int] = {}
    served: list[int] = []
    results = run_sweep(
        SPECS,
        trace,
        jobs=jobs,
        callbacks=SweepCallbacks(
            on_result=lambda index, result: told.update({index: result}),
            on_progress=served.append,
            on_outcomes=lambda index, all_of_it: outcomes.update(
                {index: sum(outcome.hit_tokens for outcome in all_of_it)}
            ),
        ),
        run=run_small,
    )
    assert [told[index] for index in range(len(SPECS))] == results
    assert outcomes == {index: result.hit_tokens for index, result in enumerate(results)}
    assert sum(served) == 300 * len(SPECS)
    assert max(served) == 256


def test_results_keep_their_order_when_the_first_is_the_slowest(trace: Trace, tmp_path: Path) -> None:
    finished: list[int] = []

    def run(spec: RunSpec, trace: Trace, on_request: OnRequest = None) -> RunResult:
        if spec == SPECS[0]:
            wait_for(lambda: len([*tmp_path.iterdir()]) == len(SPECS) - 1, 60)
        return run_small(spec, trace, on_request)

    def told(index: int, _result: RunResult) -> None:
        finished.append(index)
        (tmp_path / str(index)).touch()

    results = run_sweep(SPECS, trace, jobs=2, callbacks=SweepCallbacks(on_result=told), run=run)
    assert finished == [1, 2, 3, 0]
    assert untimed(results) == untimed(run_sweep(SPECS, trace, jobs=1, run=run_small))


def failing(error: Callable[[], Exception]) -> Callable[[RunSpec, Trace, OnRequest], RunResult]:
    def run(spec: RunSpec, trace: Trace, on_request: OnRequest = None) -> RunResult:
        if spec == SPECS[1]:
            raise error()
        return run_small(spec, trace, on_request)

    return run


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("kind", [ConfigError, RequestTooLargeError, ExecutionError])
def test_an_error_names_its_point(trace: Trace, jobs: int, kind: type[Exception]) -> None:
    with pytest.raises(kind, match=r"^1MB last value paged: too small$"):
        run_sweep(SPECS, trace, jobs=jobs, run=failing(lambda: kind("too small")))


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("kind", [ZeroDivisionError, InvariantError])
def test_a_bug_keeps_its_kind_and_names_its_point(trace: Trace, jobs: int, kind: type[Exception]) -> None:
    with pytest.raises(kind) as raised:
        run_sweep(SPECS, trace, jobs=jobs, run=failing(lambda: kind("what")))
    assert str(raised.value) == "what"
    notes = "\n".join(raised.value.__notes__)
    assert "in the point: 1MB last value paged" in notes
    if jobs > 1:
        assert "raise error()" in notes, "the traceback of the process"


class UnpicklableError(Exception):
    def __init__(self, one: str, two: str) -> None:
        super().__init__(one)
        self.two = two


def test_an_error_that_cannot_travel_is_told_all_the_same(trace: Trace) -> None:
    with pytest.raises(RuntimeError, match="UnpicklableError: a") as raised:
        run_sweep(SPECS, trace, jobs=2, run=failing(lambda: UnpicklableError("a", "b")))
    assert "in the point: 1MB last value paged" in "\n".join(raised.value.__notes__)


def test_a_process_that_dies_is_told(trace: Trace) -> None:
    def run(spec: RunSpec, trace: Trace, on_request: OnRequest = None) -> RunResult:
        if spec == SPECS[2]:
            os.kill(os.getpid(), signal.SIGKILL)
        return run_small(spec, trace, on_request)

    with pytest.raises(ExecutionError, match=r"1MB turns lru paged: .* ended with signal 9.*--jobs 1"):
        run_sweep(SPECS, trace, jobs=2, run=run)


def test_more_processes_than_there_can_be(trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    start = processes._start
    started: list[object] = []

    def start_two(*arguments: Any) -> object:
        if len(started) == 2:
            raise OSError(24, "Too many open files")
        started.append(start(*arguments))
        return started[-1]

    monkeypatch.setattr(processes, "_start", start_two)
    with pytest.raises(ExecutionError, match="4 processes can't be started, only 2: Too many open files"):
        run_sweep(SPECS, trace, jobs=4, run=run_small)
    assert len(started) == 2


def test_nobody_is_left_behind(trace: Trace) -> None:
    before = set(children(os.getpid()))
    for run in (run_small, failing(lambda: ConfigError("x"))):
        with suppress(ConfigError):
            run_sweep(SPECS, trace, jobs=3, run=run)
        assert set(children(os.getpid())) <= before


@pytest.mark.parametrize("jobs", [-1, -99])
def test_jobs_are_counted_from_one(trace: Trace, jobs: int) -> None:
    with pytest.raises(ConfigError, match="jobs must be at least 1"):
        run_sweep(SPECS, trace, jobs=jobs)


def test_an_interrupt_beside_a_fork_is_not_lost(trace: Trace) -> None:
    wanted, before = [os.getpid()], set(children(os.getpid()))

    def interrupt() -> None:
        # Python prints what a hook raises, and goes on.
        if wanted == [os.getpid()]:
            wanted.clear()
            os.kill(os.getpid(), signal.SIGINT)

    os.register_at_fork(after_in_parent=interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(SPECS, trace, jobs=2, run=run_small)
    assert set(children(os.getpid())) <= before


# --- ends from outside ------------------------------------------------------------------------------

SLOW = """
import time
from milepost.sim.runs import RunSpec
from milepost.sim.sweep.sweep import run_sweep
from tests.sim.block_traces import random_trace

def run(spec, trace, on_request=None):
    time.sleep(600)

try:
    print("starts", flush=True)
    run_sweep([RunSpec(policy=f"every({n})") for n in (1, 2, 3)], random_trace(1, 2), jobs=2, run=run)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def children(process: int) -> list[int]:
    """Processes whose parent is `process`, by the system's own list."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has just ended
        if int(fields[1]) == process:
            found.append(int(status.parent.name))
    return found


def wait_for(holds: Callable[[], object], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def gone(process: int) -> bool:
    return not Path(f"/proc/{process}").exists()


@pytest.fixture
def slow() -> Callable[[], tuple[subprocess.Popen[str], list[int]]]:
    def start() -> tuple[subprocess.Popen[str], list[int]]:
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(SLOW)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509
        )
        wait_for(lambda: len(children(process.pid)) == 2)
        time.sleep(0.2)
        return process, children(process.pid)

    return start


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("whom", ["the parent", "everyone, as a terminal does"])
def test_ctrl_c_ends_all_processes(
    slow: Callable[[], tuple[subprocess.Popen[str], list[int]]], whom: str
) -> None:
    process, workers = slow()
    started = time.monotonic()
    if whom == "the parent":
        process.send_signal(signal.SIGINT)
    else:
        os.killpg(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=20)
    assert out.split() == ["starts", "interrupted"]
    assert process.returncode == 0
    assert time.monotonic() - started < 5
    assert all(map(gone, workers))


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_workers_do_not_outlive_a_parent_that_is_killed(
    slow: Callable[[], tuple[subprocess.Popen[str], list[int]]],
) -> None:
    process, workers = slow()
    process.kill()
    process.communicate(timeout=20)
    wait_for(lambda: all(map(gone, workers)))
