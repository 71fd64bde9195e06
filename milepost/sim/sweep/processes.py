"""Processes that run a sweep's points, one each at a time.

They inherit the trace as it lies in memory where the system can fork, and get a copy elsewhere. Ctrl-C
reaches them through their parent, which ends them; one that has lost its parent ends by itself.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import msgspec

from milepost.errors import ExecutionError
from milepost.sim.runs import RequestOutcome, RunResult, RunSpec
from milepost.sim.sweep.grid import point_name
from milepost.sim.sweep.point import PointRunner
from milepost.sim.sweep.watch import PointWatch, SweepCallbacks, name_point
from milepost.sim.traces.trace import Trace

__all__ = ["run_in_processes"]

START_METHOD = "fork" if sys.platform == "linux" else "spawn"
"""Elsewhere libraries that the system loads don't bear forks."""

_ORPHAN_SECONDS = 1.0
_GRACE_SECONDS = 2.0


class _Done(msgspec.Struct, frozen=True):
    """What a process says of a point that it has run."""

    result: RunResult
    outcomes: list[RequestOutcome]


class _Failed(msgspec.Struct, frozen=True):
    """What it says of one that it could not run."""

    error: Exception


class _Worker:
    """A process, seen from its parent.

    Attributes:
        connection: what it says: a number of requests, `_Done` or `_Failed`.
        index: the point that it runs.
    """

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self._process = process
        self.connection = connection
        self.index = -1

    def give(self, index: int) -> None:
        """Let it run a point."""
        self.index = index
        self.connection.send(index)

    def hear(self, spec: RunSpec) -> int | _Done | _Failed:
        """Its next word.

        Raises:
            ExecutionError: it has ended.
        """
        try:
            word: int | _Done | _Failed = self.connection.recv()
        except (EOFError, OSError):
            self._process.join(_GRACE_SECONDS)
            raise ExecutionError(
                f"{point_name(spec)}: the process that ran it ended with {_how(self._process.exitcode)}. "
                "Is memory short? Give --jobs 1, or fewer requests (--first)."
            ) from None
        return word

    def end(self) -> None:
        """End it now, whatever it does."""
        self.connection.close()
        self._process.terminate()

    def join(self) -> None:
        """Wait until it is gone."""
        self._process.join(_GRACE_SECONDS)
        if self._process.exitcode is None:
            self._process.kill()
            self._process.join()
        self._process.close()


def _how(exitcode: int | None) -> str:
    return f"signal {-exitcode}" if exitcode is not None and exitcode < 0 else f"exit code {exitcode}"


def run_in_processes(
    specs: Sequence[RunSpec], trace: Trace, processes: int, callbacks: SweepCallbacks, run: PointRunner
) -> list[RunResult]:
    """Run `specs` in `processes` processes; results in their order.

    Raises:
        InputError: a point can't be run; the message names it.
        ExecutionError: a process has ended by itself, or there can't be so many.
    """
    workers: list[_Worker] = []
    try:
        with _interrupts_wait():
            try:
                workers.extend(_start(specs, trace, callbacks, run) for _ in range(processes))
            except OSError as error:
                raise ExecutionError(
                    f"{processes:,} processes can't be started, only {len(workers):,}: {error.strerror}. "
                    "Give fewer --jobs."
                ) from None
        return _drive(workers, specs, callbacks)
    finally:
        for worker in workers:
            worker.end()
        for worker in workers:
            worker.join()


def _drive(
    workers: Sequence[_Worker], specs: Sequence[RunSpec], callbacks: SweepCallbacks
) -> list[RunResult]:
    results: dict[int, RunResult] = {}
    waiting = iter(range(len(specs)))
    for worker in workers:
        worker.give(next(waiting))
    busy = [*workers]
    while busy:
        ready = wait([worker.connection for worker in busy])
        for worker in [worker for worker in busy if worker.connection in ready]:
            word = worker.hear(specs[worker.index])
            if isinstance(word, _Failed):
                raise word.error
            if isinstance(word, int):
                if callbacks.on_progress is not None:
                    callbacks.on_progress(word)
                continue
            results[worker.index] = word.result
            callbacks.tell(worker.index, word.result, word.outcomes)
            index = next(waiting, None)
            if index is None:
                busy.remove(worker)
            else:
                worker.give(index)
    return [results[index] for index in range(len(specs))]


def _start(specs: Sequence[RunSpec], trace: Trace, callbacks: SweepCallbacks, run: PointRunner) -> _Worker:
    context = multiprocessing.get_context(START_METHOD)
    ours, theirs = context.Pipe()
    process: BaseProcess = context.Process(  # type: ignore[attr-defined]  # every context has one
        target=_serve,
        args=(theirs, specs, trace, callbacks.keeps_outcomes, run),
        name="milepost-sweep",
        daemon=True,
    )
    with warnings.catch_warnings():
        # Newer Pythons warn of forks beside threads. The ones here are a numeric library's, which handles it.
        warnings.simplefilter("ignore", DeprecationWarning)
        process.start()
    theirs.close()
    return _Worker(process, ours)


@contextmanager
def _interrupts_wait() -> Iterator[None]:
    """Ctrl-C waits until the end: in a hook that runs beside a fork it would be lost."""
    if threading.current_thread() is not threading.main_thread():
        yield  # the main thread gets it
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
        if came:
            signal.raise_signal(signal.SIGINT)


# --- in the process ---------------------------------------------------------------------------------


def _serve(
    connection: Connection, specs: Sequence[RunSpec], trace: Trace, keeps: bool, run: PointRunner
) -> None:
    """Run points until the parent is gone or ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the terminal's whole group: the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    gc.freeze()  # what was inherited stays: no collection goes through it, or writes to its pages
    try:
        while True:
            spec = specs[connection.recv()]
            connection.send(_answer(connection, spec, trace, keeps, run))
    except (EOFError, OSError):
        return  # nobody listens any more


def _answer(
    connection: Connection, spec: RunSpec, trace: Trace, keeps: bool, run: PointRunner
) -> _Done | _Failed:
    watch = PointWatch(connection.send, keeps=keeps)
    try:
        result = run(spec, trace, watch.saw)
    except Exception as error:  # noqa: BLE001 - told to the parent, which raises it
        named = name_point(error, spec)
        return _Failed(_portable(error) if named is error else named)
    watch.flush()
    return _Done(result, watch.outcomes)


def _portable(error: Exception) -> Exception:
    """A bug's `error` as it can be sent, with its traceback as a note."""
    error.add_note("".join(traceback.format_exception(error)).rstrip())
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    except Exception:  # noqa: BLE001 - whatever a foreign error does when it is pickled
        stand_in = RuntimeError(f"{type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            stand_in.add_note(note)
        return stand_in
    return error


def _end_with(parent: int) -> None:
    """End this process when `parent` is gone, in the middle of a point if need be."""
    while os.getppid() == parent:
        time.sleep(_ORPHAN_SECONDS)
    os._exit(1)
