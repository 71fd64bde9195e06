"""Milepost's server and llama.cpp's as processes, of which only the one that is asked runs."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from benchmarks.cpu_peers.alternating import OURS
from benchmarks.cpu_peers.models import Format, checkpoint_of, gguf_of
from benchmarks.cpu_peers.options import THREADS, Peers, environment
from benchmarks.subjects import REPOSITORY
from milepost.errors import ConfigError

__all__ = ["MODEL", "PEER", "Server", "commands"]

MODEL = "model"
"""Its name on either server."""
PEER = "llama-server"

SLOTS = 4
SLOT_TOKENS = 4096
"""Of llama-server, whose slots share its context evenly; Milepost's requests share an arena."""

PATIENCE = 120.0
PAUSE = 0.005


class Server:
    """A server on a port of its own; ready once made, and stopped unless it is `running`.

    Args:
        name: of its side.
        command: what starts it, without the port.

    Attributes:
        name: as given.
        port: where it listens.
        ready_after: seconds from the start of the process to its first healthy answer.

    Raises:
        ConfigError: it ended, or said nothing for two minutes.
    """

    def __init__(self, name: str, command: Sequence[object]) -> None:
        self.name = name
        self.port = _free_port()
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the process
        started = time.perf_counter()
        self._process = subprocess.Popen(
            [*(str(part) for part in command), "--port", str(self.port)],
            cwd=REPOSITORY,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        try:
            self._wait(started)
        except BaseException:
            self.end()
            raise
        self.ready_after = time.perf_counter() - started
        self._signal(signal.SIGSTOP)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    @contextmanager
    def running(self) -> Iterator[int]:
        """The port, while the server runs."""
        self._signal(signal.SIGCONT)
        try:
            yield self.port
        finally:
            self._signal(signal.SIGSTOP)

    def end(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._log.close()

    def _signal(self, number: int) -> None:
        if self._process.poll() is None:
            os.kill(self._process.pid, number)

    def _wait(self, started: float) -> None:
        while not _healthy(self.port):
            if self._process.poll() is not None or time.perf_counter() - started > PATIENCE:
                self._log.seek(0)
                said = self._log.read().decode(errors="replace").strip()
                raise ConfigError(f"{self.name} did not start: {said[-1500:]}")
            time.sleep(PAUSE)


def commands(subject: str, form: Format, peers: Peers) -> dict[str, list[object]]:
    """What starts either server on a subject: their defaults, but two threads and room for four requests."""
    return {
        OURS: _milepost(checkpoint_of(subject, packed=form.packed), form),
        PEER: _llama(subject, form, peers),
    }


def _milepost(folder: Path, form: Format) -> list[object]:
    command: list[object] = [sys.executable, "-m", "milepost", "serve", folder, "--threads", THREADS]
    return [*command, "--memory", "1GiB", "--served-model-name", MODEL, "--weights", form.weights]


def _llama(subject: str, form: Format, peers: Peers) -> list[object]:
    command: list[object] = [peers.llama_server, "--model", gguf_of(subject, form, peers), "--alias", MODEL]
    return [*command, "--threads", THREADS, "--parallel", SLOTS, "--ctx-size", SLOTS * SLOT_TOKENS]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _healthy(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
