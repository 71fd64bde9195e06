"""What happens around requests: models, health, metrics, disconnects and the end."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import openai
import pytest
from openai import OpenAI

from milepost.errors import ConfigError
from milepost.server import bind
from tests.server.scripted_server import MAX_MODEL_LEN, MODEL, NUM_PAGES, ServedEngine, run_for_long

MESSAGES: Any = [{"role": "user", "content": "hi"}]


@contextmanager
def raw_request(served: ServedEngine, **fields: Any) -> Iterator[socket.socket]:
    """A chat request on a socket of one's own, to be cut at will."""
    body = json.dumps({"model": MODEL, "messages": MESSAGES} | fields).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(served.address, timeout=10) as connection:
        connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n" + body)
        yield connection


def wait_until_running(served: ServedEngine) -> None:
    deadline = time.monotonic() + 5
    while served.metric("milepost:num_requests_running") == 0:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_client_that_leaves_in_the_middle_of_its_body_is_no_failure(
    served: ServedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    for path in ("/v1/chat/completions", "/v1/completions"):
        with socket.create_connection(served.address, timeout=10) as connection:
            head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n"
            connection.sendall(head.encode() + b"Content-Type: application/json\r\n\r\n{")
            time.sleep(0.1)
    time.sleep(0.2)
    assert served.call("/health").status == 200
    assert not caplog.records
    assert 'status="500"' not in served.call("/metrics").body.decode()


def test_models(served: ServedEngine, client: OpenAI) -> None:
    (model,) = client.models.list().data
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "milepost")
    assert json.loads(served.call("/v1/models").body)["data"][0]["max_model_len"] == MAX_MODEL_LEN
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_health(served: ServedEngine) -> None:
    assert served.call("/health").status == 200


def test_metrics_tell_what_happened(served: ServedEngine, client: OpenAI) -> None:
    served.script.write("abc")
    client.completions.create(model=MODEL, prompt="12345")
    client.completions.create(model=MODEL, prompt="12345", max_tokens=2)
    served.call("/v1/completions", {"model": MODEL})
    reason = 'milepost:requests_total{endpoint="completions",finished_reason="%s"}'
    assert served.metric(reason % "stop") == 1
    assert served.metric(reason % "length") == 1
    assert served.metric('milepost:http_errors_total{code="missing_parameter",status="400"}') == 1
    assert served.metric("milepost:prompt_tokens_total") == 10
    assert served.metric("milepost:generation_tokens_total") == 6
    assert served.metric("milepost:time_to_first_token_seconds_count") == 2
    assert served.metric("milepost:inter_token_latency_seconds_count") == 4
    assert served.metric("milepost:e2e_request_latency_seconds_count") == 2
    assert served.metric("milepost:num_requests_running") == 0
    free, cached = (served.metric(f'milepost:pages{{state="{state}"}}') for state in ("free", "cached"))
    assert free + cached == NUM_PAGES - 1
    assert served.metric("milepost:steps_total") == len(served.executor.batches)


def test_pages_of_a_failed_request_count_as_tainted(served: ServedEngine, client: OpenAI) -> None:
    served.executor.fail_next = "non-finite logits"
    with pytest.raises(openai.InternalServerError, match="non-finite"):
        client.completions.create(model=MODEL, prompt="a")
    served.wait_until_idle()
    tainted = served.metric('milepost:pages{state="tainted"}')
    assert tainted > 0
    assert served.metric('milepost:pages{state="free"}') + tainted == NUM_PAGES - 1


def test_a_stream_that_is_left_frees_its_pages(served: ServedEngine, client: OpenAI) -> None:
    run_for_long(served)
    with client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True) as stream:
        for _ in range(3):
            next(stream)
        assert served.metric('milepost:pages{state="owned"}') > 0
    served.wait_until_idle(1)
    assert served.metric('milepost:requests_total{endpoint="chat",finished_reason="abort"}') == 1
    assert served.front_is_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_frees_its_pages(served: ServedEngine, stream: bool) -> None:
    run_for_long(served)
    with raw_request(served, stream=stream):
        wait_until_running(served)
    served.wait_until_idle(1)
    assert served.front_is_idle()


def test_a_client_of_several_prompts_that_hangs_up(served: ServedEngine) -> None:
    run_for_long(served)
    with served.client() as client, pytest.raises(openai.APITimeoutError):
        client.completions.create(model=MODEL, prompt=["a", "b", "c"], max_tokens=500, timeout=0.3)
    served.wait_until_idle(1)
    assert served.front_is_idle()


def test_draining_finishes_what_runs_and_refuses_the_rest(served: ServedEngine, client: OpenAI) -> None:
    served.script.tokens = [ord("x")] * 40
    served.executor.seconds = 0.02
    stream = client.completions.create(model=MODEL, prompt="a", max_tokens=40, stream=True)
    next(stream)
    served.drain()
    assert served.call("/ready").status == 503
    assert served.call("/health").status == 200  # a failing one would have it killed before it is done
    with pytest.raises(openai.InternalServerError) as caught:
        client.completions.create(model=MODEL, prompt="a")
    assert caught.value.status_code == 503
    assert "shutting down" in str(caught.value)
    chunks = list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    served.join()


def test_a_second_signal_aborts_what_runs(served: ServedEngine, client: OpenAI) -> None:
    run_for_long(served)
    stream = client.completions.create(model=MODEL, prompt="a", max_tokens=900, stream=True)
    next(stream)
    served.drain()
    served.drain()
    with pytest.raises(openai.APIError, match="stopped before the reply was complete"):
        list(stream)
    served.join()


def test_many_clients_at_once(served: ServedEngine) -> None:
    served.script.write("abcdef")
    texts: list[str] = []

    def ask() -> None:
        with served.client() as client:
            texts.append(client.completions.create(model=MODEL, prompt="a").choices[0].text)

    threads = [threading.Thread(target=ask) for _ in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["abcdef"] * 24
    served.wait_until_idle()


def test_a_taken_port_is_a_config_error(served: ServedEngine) -> None:
    port = int(served.url.rpartition(":")[2])
    with pytest.raises(ConfigError, match=rf"127\.0\.0\.1:{port}.*--port"):
        bind("127.0.0.1", port)


def test_an_address_that_can_not_be() -> None:
    with pytest.raises(ConfigError):
        bind("256.1.1.1", 80)
