"""curl: a stream on the command line, one that is cut off, and what a proxy or a script looks at."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from typing import Any

import pytest

from tests.clients.conftest import ANSWER, PATIENCE, QUESTION, Server

pytestmark = [
    pytest.mark.clients,
    pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl"),
]

JSON = ("-H", "Content-Type: application/json")


def curl(*words: str, code: int = 0) -> str:
    done = subprocess.run(
        ["curl", "--silent", "--show-error", "--no-buffer", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def body(server: Server, **more: Any) -> str:
    asked = {"model": server.model, "messages": [{"role": "user", "content": QUESTION}], "temperature": 0}
    return json.dumps(asked | more)


def events(text: str) -> list[str]:
    """The data of a stream's events, each followed by an empty line."""
    assert text.endswith("\n\n")
    return [event.removeprefix("data: ") for event in text.strip().split("\n\n")]


def test_a_stream(server: Server) -> None:
    asked = body(server, stream=True, stream_options={"include_usage": True})
    *chunks, last = events(curl(f"{server.base}/chat/completions", *JSON, "-d", asked))
    assert last == "[DONE]"
    read = [json.loads(chunk) for chunk in chunks]
    assert (
        "".join(one["choices"][0]["delta"].get("content") or "" for one in read if one["choices"]) == ANSWER
    )
    assert read[-1]["usage"]["completion_tokens"] > 0


def test_a_stream_over_a_connection_that_ends_with_it(server: Server) -> None:
    asked = body(server, stream=True)
    answer = curl("--http1.0", f"{server.base}/chat/completions", *JSON, "-d", asked)
    assert events(answer)[-1] == "[DONE]"


def test_headers_of_a_stream(server: Server) -> None:
    asked = body(server, stream=True)
    text = curl("--include", f"{server.base}/chat/completions", *JSON, "-d", asked).lower()
    assert "content-type: text/event-stream" in text
    assert "cache-control: no-" in text, "a proxy may hold a stream back"


def test_a_client_that_runs_out_of_time(server: Server) -> None:
    asked = body(server, stream=True, max_tokens=8000, ignore_eos=True)
    curl("--max-time", "1", f"{server.base}/chat/completions", *JSON, "-d", asked, code=28)
    until = time.monotonic() + PATIENCE
    while server.running():
        assert time.monotonic() < until, "the server still runs what its client has left"
        time.sleep(0.05)


def test_a_body_that_comes_only_when_it_is_welcome(server: Server) -> None:
    """curl asks first with a large body: Expect: 100-continue."""
    asked = body(server, max_tokens=2, messages=[{"role": "user", "content": "a " * 3000}])
    words = ("--expect100-timeout", "30", "-H", "Expect: 100-continue", "-d", asked)
    assert json.loads(curl(f"{server.base}/chat/completions", *JSON, *words))["choices"]


def test_an_error_fails_the_command(server: Server) -> None:
    words = ("--fail-with-body", f"{server.base}/chat/completions", *JSON, "-d", "{")
    assert json.loads(curl(*words, code=22))["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/metrics", "/v1/models", "/openapi.json"])
def test_what_a_script_looks_at(server: Server, path: str) -> None:
    assert curl("--fail", f"{server.url}{path}")
    head = curl("--fail", "--head", f"{server.url}{path}")
    assert " 200 " in head.splitlines()[0] + " "
