"""What the server writes into its log: one line a request, and never a prompt unless it was asked to."""

from __future__ import annotations

import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import openai
import pytest

from milepost.server import ServerConfig
from milepost.server.telemetry.logs import JsonFormatter, TextFormatter, configure_logging
from tests.server.scripted_server import MODEL, ServedEngine, read_samples, serving

SECRET = "the-secret-prompt"
LINE = re.compile(
    r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z (INFO|ERROR|WARNING) +([\w.]+)( \[[^ \]]+\])? (.*)"
)


class Log:
    """The lines of a log."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self._stream = StringIO()
        self.handler = logging.StreamHandler(self._stream)
        self.handler.setFormatter(formatter)

    @property
    def text(self) -> str:
        return self._stream.getvalue()

    def objects(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text.splitlines()]

    def wait_for(self, count: int, logger: str = "milepost.server.requests") -> list[dict[str, Any]]:
        """The objects of a logger, once there are `count`: lines are written after the reply is sent."""
        deadline = time.monotonic() + 5
        while True:
            found = [one for one in self.objects() if one["logger"] == logger]
            if len(found) >= count:
                return found
            assert time.monotonic() < deadline, self.text
            time.sleep(0.01)


@pytest.fixture
def log_to() -> Iterator[Callable[[logging.Formatter], Log]]:
    """Logs everything at info, in a form of choice."""
    root = logging.getLogger()
    level, added = root.level, []

    def start(formatter: logging.Formatter) -> Log:
        log = Log(formatter)
        root.setLevel(logging.INFO)
        root.addHandler(log.handler)
        added.append(log.handler)
        return log

    yield start
    root.setLevel(level)
    for handler in added:
        root.removeHandler(handler)


def ask(served: ServedEngine, request_id: str, **fields: object) -> None:
    body = {"model": MODEL, "prompt": SECRET} | fields
    served.call("/v1/completions", body, headers={"X-Request-Id": request_id})


def test_one_line_a_request(served: ServedEngine, log_to: Callable[[logging.Formatter], Log]) -> None:
    log = log_to(JsonFormatter())
    served.script.write("abc")
    ask(served, "first")
    ask(served, "second", prompt=[SECRET, SECRET + "2"], max_tokens=2)
    ask(served, "third", temperature=-1)
    served.call("/health")
    first, second, third = log.wait_for(3)
    assert first["message"] == "POST /v1/completions 200"
    wanted = {"request_id": "first", "tenant": "anonymous", "finish_reason": "stop", "level": "info"}
    assert first | wanted == first
    assert (first["prompt_tokens"], first["cached_tokens"], first["output_tokens"]) == (len(SECRET), 0, 4)
    assert 0 < first["ttft"] <= first["duration"] < 5
    assert (second["prompt_tokens"], second["output_tokens"]) == (2 * len(SECRET) + 1, 4)
    assert second["finish_reason"] == "length"
    assert (third["message"], third["code"]) == ("POST /v1/completions 400", "invalid_value")
    assert "ttft" not in third
    assert SECRET not in log.text
    assert len(log.wait_for(3)) == 3, "nothing is said of a health check"


def test_a_client_that_leaves_has_its_line_too(
    served: ServedEngine, log_to: Callable[[logging.Formatter], Log]
) -> None:
    log = log_to(JsonFormatter())
    served.script.tokens = [ord("x")] * 900
    served.executor.seconds = 0.02
    with served.client() as client, pytest.raises(openai.APITimeoutError):
        client.completions.create(model=MODEL, prompt=SECRET, max_tokens=900, timeout=0.3)
    (line,) = log.wait_for(1)
    assert line["message"].endswith("499")
    assert line["finish_reason"] == "abort"
    assert line["output_tokens"] > 0


def test_prompts_and_replies_only_when_asked_for(log_to: Callable[[logging.Formatter], Log]) -> None:
    log = log_to(JsonFormatter())
    with serving(ServerConfig(drain_seconds=5, log_prompts=True)) as served:
        served.script.write("abc")
        ask(served, "it", cache_salt="salt-of-mine")
        (line,) = log.wait_for(1)
    assert json.loads(line["prompt"]) == {"prompt": SECRET}
    assert json.loads(line["reply"])["choices"][0]["text"] == "abc"
    assert "salt-of-mine" not in log.text


def test_tenants_by_their_names(log_to: Callable[[logging.Formatter], Log], tmp_path: Path) -> None:
    log, key = log_to(JsonFormatter()), "a-key-of-the-search-team"
    file = tmp_path / "keys.toml"
    file.write_text(f'[tenants.search]\nkeys = ["{key}"]\noperator = true\n')
    file.chmod(0o600)
    with serving(ServerConfig(drain_seconds=5, api_keys=str(file))) as served:
        authorization = {"Authorization": f"Bearer {key}"}
        body = {"model": MODEL, "prompt": "12345", "max_tokens": 2}
        served.call("/v1/completions", body, headers=authorization)
        served.call("/v1/completions", body)
        lines = log.wait_for(2)
        metrics = read_samples(served.call("/metrics", headers=authorization).body)
    assert [(line["tenant"], line.get("code")) for line in lines] == [
        ("search", None),
        ("anonymous", "invalid_api_key"),
    ]
    assert metrics['milepost:tenant_tokens_total{kind="prompt",tenant="search"}'] == 5
    assert metrics['milepost:http_errors_total{code="invalid_api_key",status="401"}'] == 1
    assert key not in log.text


def test_who_is_refused_what_is_for_operators_is_named(
    log_to: Callable[[logging.Formatter], Log], tmp_path: Path
) -> None:
    log, key = log_to(JsonFormatter()), "a-key-of-the-search-team"
    file = tmp_path / "keys.toml"
    file.write_text(f'[tenants.search]\nkeys = ["{key}"]\n')
    file.chmod(0o600)
    with serving(ServerConfig(api_keys=str(file))) as served:
        served.call("/cache/reset", {}, headers={"Authorization": f"Bearer {key}"})
        (line,) = log.wait_for(1)
    assert (line["tenant"], line["code"]) == ("search", "operator_only")


def test_what_else_is_logged_names_the_request(
    served: ServedEngine, log_to: Callable[[logging.Formatter], Log], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> list[int]:
        raise ZeroDivisionError("not foreseen")

    log = log_to(JsonFormatter())
    monkeypatch.setattr(type(served.services.tokenizer), "encode", fail)
    ask(served, "failing")
    line = log.wait_for(1)[0]
    assert (line["request_id"], line["code"]) == ("failing", "internal_error")
    (error,) = log.wait_for(1, "uvicorn.error")
    assert (error["request_id"], error["level"]) == ("failing", "error")
    assert "ZeroDivisionError: not foreseen" in error["traceback"]


def test_text(served: ServedEngine, log_to: Callable[[logging.Formatter], Log]) -> None:
    log = log_to(TextFormatter())
    ask(served, "mine")
    served.call("/nowhere%0A2026-01-01T00:00:00.000Z%20ERROR%20forged")
    deadline = time.monotonic() + 5
    while len(log.text.splitlines()) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    lines = log.text.splitlines()
    assert len(lines) == 2, "a path can't forge a line"
    found = LINE.fullmatch(lines[0])
    assert found
    assert found[3] == " [mine]"
    assert found[4].startswith("POST /v1/completions 200 tenant=anonymous prompt_tokens=17 ")
    assert "\\n2026" in lines[1]


def test_no_path_forges_a_field_or_moves_a_terminal(
    served: ServedEngine, log_to: Callable[[logging.Formatter], Log]
) -> None:
    path = "/v1/models/a 200 tenant=ops\x9b31m\x7f\u2028\u0085b"
    text, objects = log_to(TextFormatter()), log_to(JsonFormatter())
    served.call(quote(path))
    (found,) = objects.wait_for(1)
    assert objects.text.strip("\n").isprintable()
    assert text.text.strip("\n").isprintable()
    assert found["message"] == f"GET {path.replace(' ', '%20')} 404"
    assert " GET /v1/models/a%20200%20tenant=ops\\x9b31m" in text.text
    assert len(re.findall(r" tenant=", text.text)) == 1


def test_no_value_forges_a_field() -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, "said", (), None)
    record.fields = {"prompt": 'a" tenant=ops', "tenant": "ann"}
    assert TextFormatter().format(record).endswith(r' said prompt="a\" tenant=ops" tenant=ann')


def test_a_traceback_forges_no_line() -> None:
    forged = "2026-01-01T00:00:00.000Z ERROR   x forged"
    try:
        raise ZeroDivisionError(f"a\n{forged}\x9b")
    except ZeroDivisionError:
        record = logging.LogRecord("x", logging.ERROR, "", 0, "failed", (), sys.exc_info())
    first, *more = TextFormatter().format(record).split("\n")
    assert LINE.fullmatch(first)
    assert f"    {forged}\\x9b" in more
    assert all(line.startswith("    ") and line.isprintable() for line in more)


def test_configured(capsys: pytest.CaptureFixture[str]) -> None:
    names = (None, "milepost", "uvicorn", "uvicorn.error", "uvicorn.access")
    loggers = [logging.getLogger(name) for name in names]
    before = [(one.level, one.handlers[:], one.propagate) for one in loggers]
    try:
        configure_logging(ServerConfig(log_format="json", log_level="info"))
        logging.getLogger("uvicorn.error").warning("of the server behind")
        logging.getLogger("milepost.server.x").info("told")
        logging.getLogger("milepost.server.x").debug("not told")
        written = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    finally:
        for one, (level, handlers, propagate) in zip(loggers, before, strict=True):
            one.setLevel(level)
            one.handlers[:] = handlers
            one.propagate = propagate
    assert [(one["logger"], one["message"]) for one in written] == [
        ("uvicorn.error", "of the server behind"),
        ("milepost.server.x", "told"),
    ]
