"""What the server tells an operator who opens it to others, and a browser whose page asks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from milepost.errors import ConfigError
from milepost.server import ServerConfig, check_access
from milepost.server.access.exposure import is_loopback, is_own_host
from milepost.server.access.keys import ENVIRONMENT_NAME
from tests.server.scripted_server import MODEL, ServedEngine, serving

KEY = "ann-0123456789abcdef"
CHAT = "/v1/chat/completions"
BODY = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
ORIGIN = "https://example.org"


def lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.8.8", "LOCALHOST."])
def test_this_machine_alone_needs_no_warning(host: str) -> None:
    assert is_loopback(host)
    assert check_access(ServerConfig(host=host)) == []


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "gpu1.example.org"])  # noqa: S104 - nothing is bound
def test_open_to_others(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_loopback(host)
    everyone, plain = check_access(ServerConfig(host=host))
    assert everyone.startswith(f"Everyone who reaches {host}")
    assert "--api-keys" in everyone
    assert "--tls-cert" in plain
    monkeypatch.setenv(ENVIRONMENT_NAME, KEY)
    (only,) = check_access(ServerConfig(host=host))
    assert only == plain


def test_the_default_is_this_machine() -> None:
    assert ServerConfig().host == "127.0.0.1"
    assert ServerConfig().cors_origins == ()


# -- pages of other sites -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("localhost", True),
        ("localhost:8000", True),
        ("127.0.0.1:8000", True),
        ("[::1]:8000", True),
        ("192.0.2.7", True),
        ("milepost", True),
        ("x.localhost:1", True),
        ("proxy.example.org", True),
        ("", True),
        ("evil.example:8000", False),
        ("127.0.0.1.evil.example", False),
        ("localhost.evil.example", False),
        ("evil.example.", False),
    ],
)
def test_names_of_a_server_on_this_machine(header: str, expected: bool) -> None:
    assert is_own_host(header, ("proxy.example.org",)) is expected
    assert is_own_host(header.upper(), ("Proxy.Example.org",)) is expected
    assert is_own_host(header, ("*",))


def test_a_page_whose_name_was_made_to_mean_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    rebound = {"Host": "evil.example:8000"}
    with serving(ServerConfig(allowed_hosts=("proxy.example.org",))) as served:
        for path, body in ((CHAT, BODY), ("/metrics", None), ("/cache/reset", {}), ("/health", None)):
            reply = served.call(path, body, headers=rebound)
            assert (reply.status, reply.error["code"]) == (421, "host_not_allowed")
        assert served.call(CHAT, BODY, headers={"Host": "proxy.example.org"}).status == 200
    monkeypatch.setenv(ENVIRONMENT_NAME, KEY)
    with serving() as served:  # such a page knows no key
        headers = rebound | {"Authorization": f"Bearer {KEY}"}
        assert served.call(CHAT, BODY, headers=headers).status == 200


def test_no_other_sites_page_may_read_by_default(served: ServedEngine) -> None:
    reply = served.call(CHAT, BODY, headers={"Origin": ORIGIN})
    assert not [name for name in lower(reply.headers) if name.startswith("access-control")]
    asked = {"Origin": ORIGIN, "Access-Control-Request-Method": "POST"}
    reply = served.call(CHAT, method="OPTIONS", headers=asked)
    assert reply.status == 405
    assert "access-control-allow-origin" not in lower(reply.headers)


def test_origins_that_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ENVIRONMENT_NAME, KEY)
    with serving(ServerConfig(cors_origins=(ORIGIN,))) as served:
        asked = {
            "Origin": ORIGIN,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, x-stainless-lang",
        }
        reply = served.call(CHAT, method="OPTIONS", headers=asked)  # without the key, as browsers ask
        assert reply.status == 200
        assert lower(reply.headers)["access-control-allow-origin"] == ORIGIN
        assert (
            served.call(CHAT, method="OPTIONS", headers=asked | {"Origin": "https://evil.example"}).status
            == 400
        )
        reply = served.call(CHAT, BODY, headers={"Origin": ORIGIN})
        assert reply.status == 401
        assert lower(reply.headers)["access-control-allow-origin"] == ORIGIN  # it can read why
        evil = served.call(CHAT, BODY, headers={"Origin": "https://evil.example"})
        assert "access-control-allow-origin" not in lower(evil.headers)
        assert "access-control-allow-credentials" not in lower(reply.headers)


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "example.org",
        "https://example.org/",
        "https://",
        "https://a b",
        "https://A.org",
        "https://a\r\nX: y",
        "",
    ],
)
def test_what_is_no_origin(origin: str) -> None:
    """A browser sends no such origin, or it is any page's; either way it is not what was meant."""
    with pytest.raises(ConfigError, match=r"^cors_origins must be such as https://example\.org"):
        ServerConfig(cors_origins=(ORIGIN, origin))


@pytest.mark.parametrize("origin", ["*", "http://localhost:3000", "app://obsidian.md", "https://[::1]:8443"])
def test_what_is_an_origin(origin: str) -> None:
    assert ServerConfig(cors_origins=(origin,)).cors_origins == (origin,)


@pytest.mark.parametrize(
    ("path", "body", "method"),
    [
        ("/health", None, None),
        (CHAT, BODY, None),
        (CHAT, BODY | {"stream": True}, None),
        (CHAT, {}, None),
        (CHAT, None, None),
        ("/nowhere", None, None),
        ("/metrics", None, "DELETE"),
    ],
)
def test_headers_of_every_reply(shared: ServedEngine, path: str, body: Any, method: str | None) -> None:
    headers = lower(shared.call(path, body, method=method).headers)
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert "server" not in headers
    assert not [value for value in headers.values() if "uvicorn" in value.lower()]


def test_a_simple_request_of_another_sites_page_changes_nothing(shared: ServedEngine) -> None:
    """What a browser sends without asking first: a form, or text."""
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        reply = shared.call("/cache/reset", json.dumps({}).encode(), headers={"Content-Type": kind})
        assert reply.status == 415


def test_the_command_tells_before_it_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from milepost.cli.app import run

    assert run(["serve", str(tmp_path), "--api-keys", str(tmp_path / "gone.toml"), "--port", "0"]) == 2
    assert "gone.toml: No such file or directory" in capsys.readouterr().err
