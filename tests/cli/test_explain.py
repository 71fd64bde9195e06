"""`milepost explain` against a server whose cache is scripted."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import msgspec
import pytest

from milepost.chat.encoding import ChatOptions
from milepost.cli.app import run
from milepost.cli.explain import CAUSES
from milepost.errors import ConfigError
from milepost.prefix.reports import Explanation, Loss
from milepost.server import ServerConfig
from milepost.server.access.keys import read_keys
from tests.engine.scripted_cache import EXPLANATION, ScriptedCache
from tests.server.certificates import make_certificate, needs_openssl
from tests.server.scripted_server import ServedEngine, serving

ANN, OPS = "ann-0123456789abcdef", "ops-0123456789abcdef"
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def server() -> Iterator[ServedEngine]:
    with serving() as served:
        yield served


@pytest.fixture
def cache(server: ServedEngine) -> ScriptedCache:
    return ScriptedCache().install(server.scheduler)


def test_every_cause_has_its_words() -> None:
    assert {loss.value for loss in Loss} <= set(CAUSES)


def test_the_index_around_a_prompt(server: ServedEngine, cache: ScriptedCache, capsys: Capture) -> None:
    assert run(["explain", "--url", server.url, "--prompt", "abc", "--cache-salt", "tenant"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert cache.asked == [((97, 98, 99), "tenant")]
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in out.splitlines() if "│" in line]
    assert rows == [
        ["prompt tokens", "1,200"],
        ["with cached KV", "1,104"],
        ["deepest snapshot at", "1,024"],
        ["would hit", "1,024"],
        ["would be computed", "176"],
        ["700", "turn", "3", "arena"],
        ["1,024", "spare", "0", "host  <- resumes here"],
        ["95", "unseen", "nobody sent them before, or it is forgotten"],
        ["80", "no_snapshot", "their KV is cached; the policy left no snapshot there"],
        ["1", "cap", "the last token, which is always computed"],
    ]


def test_a_prompt_without_snapshots(server: ServedEngine, cache: ScriptedCache, capsys: Capture) -> None:
    nothing = Explanation(
        prompt_tokens=2,
        hit_tokens=0,
        matched_tokens=0,
        deepest_snapshot=0,
        snapshots=(),
        losses={"unseen": 2},
    )
    server.scheduler.explain = lambda *_: nothing  # type: ignore[method-assign]
    assert run(["explain", "--url", server.url, "--prompt", "ab"]) == 0
    assert "No snapshot lies on its path." in capsys.readouterr().out


def test_json_is_the_explanation(server: ServedEngine, cache: ScriptedCache, capsys: Capture) -> None:
    assert run(["explain", "--url", f"{server.url}/", "--prompt", "abc", "--json"]) == 0
    assert msgspec.json.decode(capsys.readouterr().out, type=Explanation) == EXPLANATION


def test_prompts_come_from_files_and_stdin(
    server: ServedEngine, cache: ScriptedCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "prompt.txt"
    file.write_text("de")
    assert run(["explain", "--url", server.url, "--prompt-file", str(file)]) == 0
    monkeypatch.setattr(sys, "stdin", io.StringIO("fg"))
    assert run(["explain", "--url", server.url]) == 0
    assert cache.asked == [((100, 101), ""), ((102, 103), "")]


def test_messages_are_a_list_or_a_whole_request(
    server: ServedEngine, cache: ScriptedCache, tmp_path: Path
) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    file = tmp_path / "messages.json"
    request = {
        "model": "any",
        "messages": messages,
        "max_tokens": 5,
        "cache_salt": "s",
        "reasoning_effort": "low",
    }
    file.write_text(json.dumps(request))
    assert run(["explain", "--url", server.url, "--messages", str(file)]) == 0
    file.write_text(json.dumps(messages))
    assert run(["explain", "--url", server.url, "--messages", str(file), "--no-thinking"]) == 0
    encode = server.services.encoding.encode
    assert cache.asked == [
        (encode(messages, ChatOptions(thinking_effort="low")).token_ids, "s"),
        (encode(messages, ChatOptions(thinking=False)).token_ids, ""),
    ]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedEngine]:
    """A server with two tenants, of which one is an operator."""
    file = tmp_path_factory.mktemp("keys") / "keys.toml"
    file.write_text(f'[tenants.ann]\nkeys = ["{ANN}"]\n[tenants.ops]\nkeys = ["{OPS}"]\noperator = true\n')
    file.chmod(0o600)
    with serving(ServerConfig(api_keys=str(file))) as served:
        yield served


def test_an_operator_s_key_comes_from_a_file_or_the_environment(
    guarded: ServedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    ScriptedCache().install(guarded.scheduler)
    words = ["explain", "--url", guarded.url, "--prompt", "a"]
    assert run(words) == 2
    assert "Give an operator's with --api-key-file" in capsys.readouterr().err
    file = tmp_path / "ops.key"
    file.write_text(f"{OPS}\n")
    assert run([*words, "--api-key-file", str(file)]) == 0
    monkeypatch.setenv("MILEPOST_API_KEY", OPS)
    assert run(words) == 0
    monkeypatch.setenv("MILEPOST_API_KEY", "two\nlines")
    assert run(words) == 2
    assert "must be printable ASCII" in capsys.readouterr().err


def test_an_operator_sees_what_a_tenant_would_hit(
    guarded: ServedEngine, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    cache = ScriptedCache().install(guarded.scheduler)
    monkeypatch.setenv("MILEPOST_API_KEY", OPS)
    words = ["explain", "--url", guarded.url, "--prompt", "a", "--cache-salt", "s"]
    keys, _ = read_keys(guarded.services.config.api_keys, {})
    for name, key in (("ann", ANN), ("ops", OPS)):
        assert run([*words, "--tenant", name]) == 0
        tenant = keys.tenant(key)
        assert tenant is not None
        assert cache.asked[-1] == ((97,), tenant.engine_salt("s"))
    assert run(words) == 0
    assert cache.asked[-1] == cache.asked[-2]
    assert run([*words, "--tenant", "bob"]) == 2
    assert "tenant must be one of ann, ops. Given: 'bob'." in capsys.readouterr().err


@needs_openssl
def test_an_authority_of_ones_own_is_named_by_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    certificate, key = make_certificate(tmp_path)
    with serving(ServerConfig(tls_cert=certificate, tls_key=key)) as served:
        ScriptedCache().install(served.scheduler)
        words = ["explain", "--url", served.url.replace("http:", "https:"), "--prompt", "a"]
        assert run(words) == 2
        assert "in $SSL_CERT_FILE" in capsys.readouterr().err
        monkeypatch.setenv("SSL_CERT_FILE", certificate)
        assert run(words) == 0


def test_without_keys_there_is_one_tenant(server: ServedEngine, capsys: Capture) -> None:
    assert run(["explain", "--url", server.url, "--prompt", "a", "--tenant", "ann"]) == 2
    assert "tenant must be one of anonymous. Given: 'ann'." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--prompt", "a", "--messages", "{file}"], "exclude each other"),
        (["--prompt", "a", "--thinking"], "--thinking belongs to the chat form"),
        (["--messages", "{file}"], 'must be a list, or an object with "messages"'),
        (["--messages", "{torn}"], "not valid JSON"),
        (["--url", "file:///etc/hosts", "--prompt", "a"], "--url must be an http address"),
        (["--url", "http://127.0.0.1:1", "--prompt", "a"], "Start 'milepost serve', or name its address"),
        (["--url", "http://127.0.0.1:port", "--prompt", "a"], "gives no explanation"),
        (["--prompt", "\udcff"], "must be UTF-8"),
        (["--prompt", ""], "at least one token"),
    ],
)
def test_what_goes_wrong_is_one_line(
    server: ServedEngine,
    cache: ScriptedCache,
    tmp_path: Path,
    capsys: Capture,
    arguments: list[str],
    says: str,
) -> None:
    files = {"{file}": tmp_path / "wrong.json", "{torn}": tmp_path / "torn.json"}
    files["{file}"].write_text('{"prompt": "a"}')
    files["{torn}"].write_text("[{")
    words = [str(files.get(word, word)) for word in arguments]
    assert run(["explain", "--url", server.url, *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("milepost: error: ")
    assert err.count("\n") == 1
    assert says in err


def test_a_server_without_a_cache_says_so(
    server: ServedEngine, cache: ScriptedCache, capsys: Capture
) -> None:
    cache.error = ConfigError("The prefix cache is off.")
    assert run(["explain", "--url", server.url, "--prompt", "a"]) == 2
    assert "prefix cache is off" in capsys.readouterr().err


class Stranger(BaseHTTPRequestHandler):
    """Some other web server."""

    status = 404
    body = b"<h1>Not found</h1>"

    def do_POST(self) -> None:
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("status", "says"), [(404, "answered with status 404"), (200, "gives no explanation")]
)
def test_another_kind_of_server(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, status: int, says: str
) -> None:
    monkeypatch.setattr(Stranger, "status", status)
    with HTTPServer(("127.0.0.1", 0), Stranger) as other:
        thread = Thread(target=other.handle_request)
        thread.start()
        assert run(["explain", "--url", f"http://127.0.0.1:{other.server_port}", "--prompt", "a"]) == 2
        thread.join(10)
    assert says in capsys.readouterr().err
