"""HTTPS: what it refuses to start with, what it speaks, and that everything else works over it."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from openai import DefaultHttpxClient, OpenAI

from milepost.errors import ConfigError
from milepost.server import ServerConfig, check_access
from tests.server.certificates import make_certificate, needs_openssl
from tests.server.scripted_server import MAX_MODEL_LEN, MODEL, ServedEngine, serving

pytestmark = needs_openssl


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    return make_certificate(tmp_path_factory.mktemp("tls"))


@contextmanager
def secure(files: tuple[str, str], stalled_reader_timeout: float = 60) -> Iterator[ServedEngine]:
    """A server that speaks HTTPS; its `url` is still that of the plain protocol."""
    config = ServerConfig(
        tls_cert=files[0],
        tls_key=files[1],
        drain_seconds=5,
        stalled_reader_timeout=stalled_reader_timeout,
    )
    with serving(config) as served:
        yield served


def client_of(served: ServedEngine, files: tuple[str, str]) -> OpenAI:
    trusted = DefaultHttpxClient(verify=ssl.create_default_context(cafile=files[0]))
    url = served.url.replace("http:", "https:")
    return OpenAI(base_url=f"{url}/v1", api_key="unused", max_retries=0, timeout=20, http_client=trusted)


@contextmanager
def handshake(
    served: ServedEngine, files: tuple[str, str], newest: ssl.TLSVersion = ssl.TLSVersion.TLSv1_3
) -> Iterator[ssl.SSLSocket]:
    context = ssl.create_default_context(cafile=files[0])
    context.maximum_version = newest
    plain = socket.create_connection(served.address, timeout=10)
    with context.wrap_socket(plain, server_hostname="127.0.0.1") as connection:
        yield connection


def test_replies_and_streams_come_over_it(files: tuple[str, str]) -> None:
    with secure(files) as served, client_of(served, files) as client:
        served.script.write("abc")
        assert client.completions.create(model=MODEL, prompt="a").choices[0].text == "abc"
        chunks = client.completions.create(model=MODEL, prompt="a", stream=True)
        assert "".join(chunk.choices[0].text for chunk in chunks) == "abc"


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_versions_that_it_speaks(files: tuple[str, str], version: ssl.TLSVersion) -> None:
    with secure(files) as served, handshake(served, files, version) as connection:
        assert connection.version() == version.name.replace("v1_", "v1.")


def test_older_versions_are_refused(files: tuple[str, str]) -> None:
    context = ssl.create_default_context(cafile=files[0])
    with pytest.warns(DeprecationWarning, match="deprecated"):
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    with secure(files) as served:
        with socket.create_connection(served.address, timeout=10) as plain, pytest.raises(ssl.SSLError):
            context.wrap_socket(plain, server_hostname="127.0.0.1")
        with client_of(served, files) as client:
            assert client.models.list().data


def test_plain_http_gets_no_answer_and_harms_nobody(files: tuple[str, str]) -> None:
    with secure(files) as served:
        with socket.create_connection(served.address, timeout=10) as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200" not in plain.recv(65536)
        with client_of(served, files) as client:
            assert client.models.list().data


def test_a_stream_that_nobody_reads_is_ended_over_it_too(files: tuple[str, str]) -> None:
    with secure(files, stalled_reader_timeout=0.6) as served:
        served.script.tokens = [ord("x")] * MAX_MODEL_LEN
        served.executor.seconds = 0.005
        fields = {"model": MODEL, "prompt": ["a"] * 8, "max_tokens": 600, "stream": True, "logprobs": 5}
        body = json.dumps(fields).encode()
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        with handshake(served, files) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.sendall(head.encode() + body)
            deadline = time.monotonic() + 12
            has_run = False
            while not has_run or not served.front_is_idle():
                has_run = has_run or not served.front_is_idle()
                assert time.monotonic() < deadline
                time.sleep(0.02)


def test_draining_ends_though_clients_keep_their_connections(files: tuple[str, str]) -> None:
    with secure(files) as served, handshake(served, files) as idle, client_of(served, files) as client:
        served.script.tokens = [ord("x")] * 40
        served.executor.seconds = 0.01
        stream = client.completions.create(model=MODEL, prompt="a", max_tokens=40, stream=True)
        next(stream)
        ends = threading.Timer(0.05, served.drain)
        ends.start()
        assert list(stream)[-1].choices[0].finish_reason == "length"
        began = time.monotonic()
        served.join()
        assert time.monotonic() - began < 4
        assert idle.recv(1) == b""


# -- files that are wrong, found before a model is loaded -----------------------------------------------


def refusal(certificate: str, key: str) -> str:
    with pytest.raises(ConfigError) as raised:
        check_access(ServerConfig(tls_cert=certificate, tls_key=key))
    return str(raised.value)


def test_files_that_fit(files: tuple[str, str]) -> None:
    assert check_access(ServerConfig(tls_cert=files[0], tls_key=files[1])) == []


def test_a_key_that_others_can_read(tmp_path: Path) -> None:
    certificate, key = make_certificate(tmp_path)
    Path(key).chmod(0o644)
    (note,) = check_access(ServerConfig(tls_cert=certificate, tls_key=key))
    assert "private key and others can read it" in note


def test_a_file_that_is_not_there(files: tuple[str, str], tmp_path: Path) -> None:
    gone = str(tmp_path / "gone.pem")
    assert refusal(gone, files[1]) == f"tls_cert: can't read {gone}: No such file or directory."
    assert refusal(files[0], gone) == f"tls_key: can't read {gone}: No such file or directory."


def test_a_key_of_another_certificate(files: tuple[str, str], tmp_path: Path) -> None:
    _, other = make_certificate(tmp_path)
    assert "the key is not the certificate's" in refusal(files[0], other)


def test_files_that_are_no_pem(files: tuple[str, str], tmp_path: Path) -> None:
    for content in ("", "nothing\n", "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"):
        file = tmp_path / "x.pem"
        file.write_text(content)
        assert "a certificate chain and a key in PEM" in refusal(str(file), files[1])
        assert "a certificate chain and a key in PEM" in refusal(files[0], str(file))


def test_a_key_with_a_passphrase(files: tuple[str, str], tmp_path: Path) -> None:
    locked = str(tmp_path / "locked.key")
    cipher = ["-aes256", "-passout", "pass:secret"]
    subprocess.run(["openssl", "pkey", "-in", files[1], *cipher, "-out", locked], check=True)
    assert "has a passphrase" in refusal(files[0], locked)
