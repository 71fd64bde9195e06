"""Processes that hold an engine each, of which only the one that is called runs."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.cpu_peers.options import THREADS, Peers, environment
from benchmarks.subjects import REPOSITORY
from milepost.errors import ConfigError

__all__ = ["Worker", "llama_cpp", "milepost", "transformers"]


class Worker:
    """A process that answers calls and is stopped between them, so that no thread of it spins meanwhile.

    Args:
        name: of the engine, in results.
        command: what starts it.
    """

    def __init__(self, name: str, command: Sequence[object]) -> None:
        self.name = name
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        self._process = subprocess.Popen(
            [str(part) for part in command],
            cwd=REPOSITORY,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._answer()  # it is loaded

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def call(self, name: str, **arguments: object) -> Any:  # noqa: ANN401 - whatever the method returns
        """Let the process run until it has answered.

        Raises:
            ConfigError: it died; its last words are in the message.
        """
        if self._process.poll() is None:
            os.kill(self._process.pid, signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):  # it died: reading says so
            print(json.dumps({"call": name, **arguments}), file=self._process.stdin, flush=True)
        return self._answer()

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()
        self._log.close()

    def _answer(self) -> Any:  # noqa: ANN401 - JSON
        stdout = self._process.stdout
        line = stdout.readline() if stdout is not None else ""
        if not line:
            status = self._process.wait()
            self._log.seek(0)
            said = self._log.read().decode(errors="replace").strip()
            raise ConfigError(f"{self.name} ended with status {status}: {said[-1500:]}")
        os.kill(self._process.pid, signal.SIGSTOP)
        return json.loads(line)["result"]


def milepost(folder: Path, **options: object) -> Worker:
    """This version of Milepost on a checkpoint, without a prefix cache, so that prompts are computed."""
    fields = {"memory": "1GiB", "prefix_cache": False, "threads": THREADS, **options}
    module = "benchmarks.cpu_peers.milepost_worker"
    command = [sys.executable, "-m", module, folder, json.dumps(fields)]
    return Worker("Milepost", command)


def llama_cpp(gguf: Path, peers: Peers) -> Worker:
    """llama.cpp on a file."""
    command = [peers.python, "-m", "benchmarks.cpu_peers.llama_cpp_worker", gguf, THREADS]
    return Worker("llama.cpp", command)


def transformers(folder: Path, peers: Peers) -> Worker:
    """Hugging Face's transformers on a checkpoint, in float32."""
    command = [peers.python, "-m", "benchmarks.cpu_peers.transformers_worker", folder, THREADS]
    return Worker("transformers", command)
