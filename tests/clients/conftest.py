"""A server of the shipped model, in an environment that need not be the clients'.

`MILEPOST_SERVER_PYTHON` names the interpreter that runs the server, `MILEPOST_SERVER_URL` a server that runs
already; without either it is this interpreter.

Clients leave event loops and sockets to the garbage collector, which the project's own settings forbid, so
run them with: pytest -m clients -W ignore tests/clients
"""

from __future__ import annotations

import json
import os
import queue
import shutil
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NODE_CLIENT = "openai@7.59.0"
PATIENCE = 120.0

QUESTION = "The code for amber is 7412. What is the code for amber?"
ANSWER = "7412"
"""What the shipped model says to it, greedily."""

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tells the weather in a city.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 12}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}


@dataclass(frozen=True)
class Server:
    """Where it answers, without and with the protocol's version."""

    url: str
    model: str = "milepost-toy-k3"

    @property
    def base(self) -> str:
        return f"{self.url}/v1"

    def running(self) -> int:
        """Requests that have not ended."""
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=PATIENCE) as answer:
            lines = answer.read().decode().splitlines()
        counts = [
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith(("milepost:num_requests_running", "milepost:num_requests_waiting"))
        ]
        assert counts, "the metrics have no count of running requests"
        return int(sum(counts))


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """The server, ended with the session."""
    if given := os.environ.get("MILEPOST_SERVER_URL"):
        yield Server(given.rstrip("/"))
        return
    python = os.environ.get("MILEPOST_SERVER_PYTHON", sys.executable)
    process = subprocess.Popen(
        [python, "-m", "milepost", "serve", "--port", "0", "--memory", "512MiB", "--threads", "1"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    lines: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_follow, args=(process, lines), daemon=True).start()
    try:
        yield Server(_address(lines))
    finally:
        process.terminate()
        code = process.wait(PATIENCE)
        assert process.stderr is not None
        process.stderr.close()
    assert code == 0


def _follow(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stderr is not None
    for line in process.stderr:
        lines.put(line)
    lines.put("")


def _address(lines: queue.Queue[str]) -> str:
    said = ""
    while line := lines.get(timeout=PATIENCE):
        said += line
        if "Milepost answers at " in line:
            return line.partition("Milepost answers at ")[2].partition("/v1")[0]
    pytest.fail(f"The server did not start: {said}")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which Node finds OpenAI's client."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text(json.dumps({"name": "clients", "private": True}))
    install = ["npm", "install", "--no-fund", "--no-audit", "--ignore-scripts", NODE_CLIENT]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr
    return folder
