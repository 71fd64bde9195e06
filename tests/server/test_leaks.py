"""What nobody may read: this machine's paths and name in replies, and clients' secrets in logs."""

from __future__ import annotations

import ast
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from milepost import errors
from milepost.server import ServerConfig
from milepost.server.protocol.errors import HttpError, to_http_error
from milepost.server.protocol.leaks import without_paths
from milepost.server.telemetry.logs import configure_logging
from tests.repository.paths import ROOT
from tests.server.scripted_server import MODEL, ServedEngine, serving

SECRET_PATH = "/srv" + "/models/kimi/model-00001.safetensors"  # in two, or a test of this repository objects
HOST = "gpu-17.cluster.example"
SECRETS = ("PROMPT-OF-ANN", "KEY-0123456789abcdef", "SALT-OF-ANN", "OTHER-KEY-0123456789")
CHAT = "/v1/chat/completions"


def every_error() -> Iterator[Exception]:
    """Each kind of Milepost's, and what the system and libraries raise, with a path and a host's name."""
    texts = [
        f"Can't read {SECRET_PATH}: No such file.",
        f"[Errno 28] No space left on device: '{SECRET_PATH}'",
        f"The engine failed in a step: RuntimeError: {SECRET_PATH}({HOST}): gpu-17 failed.",
        f'File "{SECRET_PATH}", line 3',
        f"~{SECRET_PATH} and ./{SECRET_PATH} and C:\\models\\kimi and '/srv" + "/my models/kimi'",
    ]
    kinds = [getattr(errors, name) for name in errors.__all__]
    for text in texts:
        for kind in kinds:
            if not issubclass(kind, errors.RequestError):  # those are about what the client itself sent
                yield kind(text)
        for other in (RuntimeError, ValueError, OSError, KeyError, MemoryError):
            yield other(text)
        yield OSError(2, "No such file", SECRET_PATH)


def test_no_error_tells_a_path_or_the_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: HOST)
    seen = set()
    for error in every_error():
        reply = to_http_error(error)
        seen.add(reply.status)
        for secret in ("/srv", "models", "kimi", "safetensors", "gpu-17"):
            assert secret not in reply.body.decode(), error
    assert seen == {400, 500, 503}


@pytest.mark.parametrize(
    "text",
    [
        "temperature must be between 0.0 and 2.0. Given: 3 and/or 4.",
        "The engine failed in a step: RuntimeError: device lost.",
        "non-finite logits",
        "See https://example.org/docs/errors.",
        "int8/bf16 weights",
    ],
)
def test_other_texts_stay_as_they_are(text: str) -> None:
    assert without_paths(text) == text


def test_an_executors_failure_reaches_clients_without_its_paths(served: ServedEngine) -> None:
    served.executor.crash(OSError(28, "No space left on device", SECRET_PATH))
    body = {"model": MODEL, "prompt": "a"}
    first = served.call("/v1/completions", body)
    assert first.status == 500
    assert "No space left on device" in str(first.error["message"])
    for reply in (first, served.call("/health"), served.call("/v1/completions", body)):
        assert reply.status in (500, 503)
        assert b"safetensors" not in reply.body


def test_a_failed_request_tells_no_path_in_a_stream_either(served: ServedEngine) -> None:
    served.executor.fail_next = f"could not read {SECRET_PATH}"
    body = {"model": MODEL, "prompt": "a", "stream": True}
    reply = served.call("/v1/completions", body)
    assert b"could not read [path]" in reply.body
    assert b"safetensors" not in reply.body


def test_request_errors_are_never_made_of_what_the_system_said() -> None:
    """A `RequestError` reaches clients as it is: none is raised from an exception's text but msgspec's."""
    found = []
    for path in sorted((ROOT / "milepost").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ExceptHandler) or node.name is None or node.type is None:
                continue
            if {"OSError", "Exception", "BaseException", "RuntimeError"} & named(node.type):
                found += [
                    f"{path.relative_to(ROOT)}:{raised.lineno}"
                    for raised in ast.walk(node)
                    if isinstance(raised, ast.Raise) and raised.exc is not None
                    if named(raised.exc) & {"RequestError", "RequestTooLargeError", "HttpError"}
                    and node.name in named(raised.exc)
                ]
    assert found == []


def named(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def test_http_errors_are_not_changed() -> None:
    error = HttpError(404, "There is no /v1/x here.")
    assert to_http_error(error) is error


# -- logs ---------------------------------------------------------------------------------------------


@pytest.fixture
def keys(tmp_path: Path) -> str:
    file = tmp_path / "keys.toml"
    file.write_text(f'[tenants.ann]\nkeys = ["{SECRETS[1]}"]\nsalt = "{SECRETS[2]}-0123456789"\n')
    file.chmod(0o600)
    return str(file)


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_no_log_of_ours_or_of_uvicorn_tells_a_secret(
    keys: str, capsys: pytest.CaptureFixture[str], log_format: str
) -> None:
    config = ServerConfig(api_keys=keys, log_level="debug", log_format=log_format)
    configure_logging(config)
    logging.getLogger().setLevel(logging.DEBUG)  # other libraries' too, which the command would not let
    for clients in ("openai", "httpx", "httpcore", "urllib3"):
        logging.getLogger(clients).setLevel(logging.WARNING)
    with serving(config) as served:
        exercise(served)
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert "POST /v1/chat/completions" in text, "it does log at this level"
    assert "device lost" in text
    for secret in SECRETS:
        assert secret not in text


def exercise(served: ServedEngine) -> None:
    """Every way in which a secret comes in: prompts, keys right and wrong, salts, failures."""
    messages: Any = [{"role": "user", "content": SECRETS[0]}]
    right, wrong = ({"Authorization": f"Bearer {key}"} for key in (SECRETS[1], SECRETS[3]))
    chat = {"model": MODEL, "messages": messages, "cache_salt": SECRETS[2]}
    for headers in (right, wrong, {"Authorization": SECRETS[3]}):
        served.call(CHAT, chat, headers=headers)
        served.call(CHAT, chat | {"stream": True}, headers=headers)
    served.call(CHAT, chat | {SECRETS[0]: 1}, headers=right)
    served.call(CHAT, chat | {"temperature": SECRETS[0]}, headers=right)
    served.call(CHAT, json.dumps(chat).encode()[:-1], headers=right)
    served.call("/v1/completions", {"model": MODEL, "prompt": SECRETS[0]}, headers=right)
    served.executor.fail_next = "non-finite logits"
    served.call(CHAT, chat, headers=right)
    served.executor.crash(RuntimeError("device lost"))
    served.call(CHAT, chat, headers=right)
    with socket.create_connection(served.address) as raw:
        raw.sendall(f"{SECRETS[0]} nonsense\r\n{SECRETS[1]}\r\n\r\n".encode())
        raw.recv(1000)
    served.server.reload_keys()
