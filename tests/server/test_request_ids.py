"""Every reply bears an id: the client's own if it is one that a log can hold, else a fresh one."""

from __future__ import annotations

import re
import time

import pytest

from tests.server.scripted_server import MODEL, ServedEngine

MADE = re.compile(r"[0-9a-f]{32}")


def id_of(served: ServedEngine, path: str, body: object = None, given: str | None = None) -> str:
    headers = {} if given is None else {"X-Request-Id": given}
    return served.call(path, body, headers=headers).headers["x-request-id"]


@pytest.mark.parametrize("path", ["/health", "/v1/models", "/nowhere", "/metrics"])
def test_every_reply_has_one(shared: ServedEngine, path: str) -> None:
    first, second = id_of(shared, path), id_of(shared, path)
    assert MADE.fullmatch(first)
    assert first != second


@pytest.mark.parametrize("given", ["a", "req-1.2:3@host/part+x=y_z", "x" * 128])
def test_the_clients_own_is_kept(shared: ServedEngine, given: str) -> None:
    assert id_of(shared, "/health", given=given) == given
    assert id_of(shared, "/v1/completions", {"model": MODEL}, given) == given
    assert id_of(shared, "/v1/completions", {"model": MODEL, "prompt": "a"}, given) == given
    assert id_of(shared, "/v1/completions", {"model": MODEL, "prompt": "a", "stream": True}, given) == given


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "-a", "a;b", "é", "a\tb", '{"a":1}', "<b>"])
def test_what_no_log_should_hold_is_not(shared: ServedEngine, given: str) -> None:
    assert MADE.fullmatch(id_of(shared, "/health", given=given))


def test_a_reply_to_what_nobody_foresaw_has_one(
    served: ServedEngine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> list[int]:
        raise ZeroDivisionError("not foreseen")

    monkeypatch.setattr(type(served.services.tokenizer), "encode", fail)
    reply = served.call("/v1/completions", {"model": MODEL, "prompt": "a"}, headers={"X-Request-Id": "mine"})
    assert reply.status == 500
    assert reply.headers["x-request-id"] == "mine"
    deadline = time.monotonic() + 5
    while "ZeroDivisionError" not in caplog.text:  # logged behind the reply
        assert time.monotonic() < deadline
        time.sleep(0.01)
