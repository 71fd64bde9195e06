"""Traces of requests, as a collector gets them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from milepost.errors import ConfigError
from milepost.server import ServerConfig
from milepost.server.telemetry.tracing import Tracing, otlp_provider
from tests.server.scripted_server import MODEL, ServedEngine, serving

PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def exporter() -> Any:
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter")
    return memory.InMemorySpanExporter()


@pytest.fixture
def traced(exporter: Any) -> Iterator[ServedEngine]:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor

    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with serving(tracing=Tracing(provider, MODEL)) as served:
        yield served


def spans_of(exporter: Any, count: int) -> list[Any]:
    deadline = time.monotonic() + 5
    while len(exporter.get_finished_spans()) < count:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return list(exporter.get_finished_spans())


def test_a_request_and_its_reply(traced: ServedEngine, exporter: Any) -> None:
    traced.script.write("abc")
    headers = {"traceparent": PARENT, "X-Request-Id": "mine"}
    body = {"model": MODEL, "prompt": "12345", "temperature": 0.5, "seed": 7, "max_tokens": 9}
    before = time.time_ns()
    traced.call("/v1/completions", body, headers=headers)
    traced.call("/health")
    reply, request = spans_of(exporter, 2)
    assert f"{request.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{request.parent.span_id:016x}" == PARENT.split("-")[2]
    assert reply.parent.span_id == request.context.span_id
    assert (request.name, request.kind.name) == ("POST /v1/completions", "SERVER")
    assert request.attributes["milepost.request_id"] == "mine"
    assert request.attributes["http.response.status_code"] == 200
    assert reply.name == f"text_completion {MODEL}"
    wanted = {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "milepost",
        "gen_ai.request.model": MODEL,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.max_tokens": 9,
        "gen_ai.usage.input_tokens": 5,
        "gen_ai.usage.output_tokens": 4,
        "gen_ai.response.finish_reasons": ("stop",),
    }
    assert dict(reply.attributes) | wanted == dict(reply.attributes)
    assert [event.name for event in reply.events] == ["queued", "scheduled", "first_token", "end"]
    moments = [before, request.start_time, *(event.timestamp for event in reply.events), reply.end_time]
    slack = 5_000_000  # ns: two clocks are put together
    assert all(late >= early - slack for early, late in pairwise(moments))
    assert request.end_time >= reply.end_time
    assert request.end_time <= time.time_ns() + slack


def test_refusals_and_failures(traced: ServedEngine, exporter: Any) -> None:
    traced.call("/v1/completions", {"model": MODEL})
    (refused,) = spans_of(exporter, 1)
    assert refused.attributes["error.type"] == "missing_parameter"
    assert refused.status.status_code.name == "UNSET", "a client's mistake is none of the server's"
    traced.executor.fail_next = "non-finite logits"
    traced.call("/v1/completions", {"model": MODEL, "prompt": "a"})
    _, reply, request = spans_of(exporter, 3)
    assert reply.status.status_code.name == request.status.status_code.name == "ERROR"
    assert request.attributes["error.type"] == "execution_failed"


@pytest.mark.parametrize("parent", ["", "nonsense", "00-" + "0" * 32 + "-b7ad6b7169203331-01"])
def test_a_wrong_parent_is_none(traced: ServedEngine, exporter: Any, parent: str) -> None:
    headers = {"traceparent": parent}
    assert traced.call("/v1/completions", {"model": MODEL, "prompt": "a"}, headers=headers).status == 200
    assert spans_of(exporter, 2)[1].parent is None


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'milepost\[tracing\]'"):
        otlp_provider("http://localhost:4318/v1/traces")


def test_an_endpoint_that_is_none() -> None:
    with pytest.raises(ConfigError, match=r"http://localhost:4318/v1/traces"):
        ServerConfig(otlp_endpoint="localhost:4317")


def test_opentelemetrys_own_variables_name_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    names = []
    for environment in ({}, {"OTEL_SERVICE_NAME": "chat"}, {"OTEL_RESOURCE_ATTRIBUTES": "service.name=shop"}):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            provider = otlp_provider("http://127.0.0.1:9/v1/traces")
        names.append(provider.resource.attributes["service.name"])
        provider.shutdown()
    assert names == ["milepost", "chat", "shop"]


def test_spans_go_out_by_otlp(monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as a collector of our own that counts what it is sent."""
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    got: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append((self.path, self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    collector = HTTPServer(("127.0.0.1", 0), Collector)
    thread = threading.Thread(target=collector.serve_forever)
    thread.start()
    try:
        provider = otlp_provider(f"http://127.0.0.1:{collector.server_port}/v1/traces")
        with serving(tracing=Tracing(provider, MODEL)) as served:
            served.call("/v1/completions", {"model": MODEL, "prompt": "a"})
            served.wait_until_idle()
        assert [path for path, _ in got] == ["/v1/traces"]
        assert b"gen_ai.usage.input_tokens" in got[0][1]
    finally:
        collector.shutdown()
        thread.join()
        collector.server_close()
