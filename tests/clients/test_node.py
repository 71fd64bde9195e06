"""OpenAI's client for Node."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.conftest import ANSWER, PATIENCE, QUESTION, WEATHER, Server

pytestmark = pytest.mark.clients

Ask = Callable[[str], dict[str, Any]]


@pytest.fixture
def ask(server: Server, node: Path) -> Ask:
    script = shutil.copy(Path(__file__).with_name("node_client.mjs"), node)

    def ask(case: str) -> dict[str, Any]:
        words = ["node", script, server.base, server.model, QUESTION, json.dumps(WEATHER), case]
        done = subprocess.run(words, cwd=node, capture_output=True, text=True, check=False, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return ask


def test_a_chat(ask: Ask) -> None:
    found = ask("chat")
    assert found["content"] == ANSWER
    assert found["usage"]["total_tokens"] > found["usage"]["prompt_tokens"] > 0


def test_a_stream_with_its_usage(ask: Ask) -> None:
    found = ask("stream")
    assert found["content"] == ANSWER
    assert found["usage"]["completion_tokens"] > 0


@pytest.mark.parametrize("case", ["tools", "streamedTools"])
def test_a_tool_must_be_called(ask: Ask, case: str) -> None:
    found = ask(case)
    call = found["calls"][0]["function"]
    assert call["name"] == "weather"
    assert set(json.loads(call["arguments"])) == {"city"}
    assert found.get("reason", "tool_calls") == "tool_calls"


def test_the_client_runs_a_tool_and_sends_its_result(ask: Ask) -> None:
    found = ask("runTools")
    assert found["ran"] >= 1
    assert found["roles"][:3] == ["user", "assistant", "tool"]


def test_a_parsed_reply(ask: Ask) -> None:
    assert isinstance(ask("parse")["content"]["number"], int)


def test_an_abort_ends_the_request_here_and_there(ask: Ask, server: Server) -> None:
    assert ask("abort") == {"chunks": 3, "error": "APIUserAbortError"}
    until = time.monotonic() + PATIENCE
    while server.running():
        assert time.monotonic() < until, "the server still runs what its client has left"
        time.sleep(0.05)


def test_models(ask: Ask, server: Server) -> None:
    assert ask("models") == {"ids": [server.model], "one": server.model}


def test_an_error_has_its_class_and_field(ask: Ask) -> None:
    assert ask("error") == {"kind": "BadRequestError", "status": 400, "param": "top_p"}
