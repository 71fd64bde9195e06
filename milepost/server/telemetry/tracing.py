"""Traces of requests by OpenTelemetry, which is an optional extra.

A request is a server span with the HTTP conventions' attributes, in the client's trace if it sent a
``traceparent``; each reply that it asked for is a child of it with those of the GenAI conventions
(https://opentelemetry.io/docs/specs/semconv/gen-ai/gen-ai-spans/). Spans are made when everything is known,
with the times at which it happened.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers

from milepost import __version__
from milepost.engine.reports import RequestReport
from milepost.errors import ConfigError
from milepost.server.telemetry.calls import Call
from milepost.types import FinishReason, Request

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

__all__ = ["Tracing", "otlp_provider"]

EXPORT_SECONDS = 3.0  # a collector that is away may not hold a server up that ends

_OPERATIONS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}


def otlp_provider(endpoint: str) -> TracerProvider:
    """What sends spans to `endpoint` by OTLP over HTTP, in the background.

    Args:
        endpoint: of the collector, ``/v1/traces`` included.

    Raises:
        ConfigError: the extra is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ConfigError(
            f"--otlp-endpoint needs OpenTelemetry, which is not installed ({error}). "
            "Install it with: pip install 'milepost[tracing]'."
        ) from None
    resource = Resource.create({"service.name": "milepost", "service.version": __version__})
    # OpenTelemetry's own variables, such as OTEL_SERVICE_NAME, win over what is said here.
    resource = resource.merge(OTELResourceDetector().detect())
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS))
    )
    return provider


class Tracing:
    """Makes spans of calls that are over.

    Args:
        provider: where they go.
        model_name: as served.
    """

    def __init__(self, provider: TracerProvider, model_name: str) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._provider = provider
        self._tracer = provider.get_tracer("milepost.server", __version__)
        self._propagator = TraceContextTextMapPropagator()
        self._model_name = model_name

    def trace(self, call: Call) -> None:
        """Tell of a call that asked the engine something, or failed to; others have no span."""
        path = call.scope["path"]
        if path not in _OPERATIONS:
            return
        from opentelemetry import trace
        from opentelemetry.trace import SpanKind, Status, StatusCode

        # The engine's clock and the call's is the monotonic one; spans want nanoseconds since 1970.
        offset = time.time() - time.monotonic()
        headers = Headers(scope=call.scope)
        carrier = {name: headers[name] for name in ("traceparent", "tracestate") if name in headers}
        span = self._tracer.start_span(
            f"{call.scope['method']} {path}",
            context=self._propagator.extract(carrier),
            kind=SpanKind.SERVER,
            start_time=_nanoseconds(call.began + offset),
            attributes={
                "http.request.method": call.scope["method"],
                "http.route": path,
                "http.response.status_code": call.status,
                "url.path": path,
                "milepost.request_id": call.id,
                "milepost.tenant": call.tenant,
            },
        )
        if call.code is not None:
            span.set_attribute("error.type", call.code)
        if call.status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        inside = trace.set_span_in_context(span)
        for report in call.reports:
            request = call.requests[report.request_id]
            child = self._tracer.start_span(
                f"{_OPERATIONS[path]} {self._model_name}",
                context=inside,
                kind=SpanKind.INTERNAL,
                start_time=_nanoseconds(report.arrived + offset),
                attributes=self._attributes(_OPERATIONS[path], request, report),
            )
            for name, moment in (
                ("queued", report.arrived),
                ("scheduled", report.scheduled),
                ("first_token", report.first_token),
                ("end", report.ended),
            ):
                if moment is not None:
                    child.add_event(name, timestamp=_nanoseconds(moment + offset))
            if report.reason is FinishReason.ERROR:
                child.set_attribute("error.type", "execution_failed")
                child.set_status(Status(StatusCode.ERROR))
            child.end(_nanoseconds(report.ended + offset))
        last = max((report.ended for report in call.reports), default=0.0)
        span.end(_nanoseconds(max(call.began + (call.duration or 0.0), last) + offset))

    def close(self) -> None:
        """Send what has not been sent, for some seconds at most."""
        self._provider.shutdown()

    def _attributes(self, operation: str, request: Request, report: RequestReport) -> dict[str, Any]:
        sampling, usage = request.sampling, report.usage
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "milepost",
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.model": self._model_name,
            "gen_ai.response.id": request.request_id,
            "gen_ai.response.finish_reasons": [report.reason.value],
            "gen_ai.request.temperature": float(sampling.temperature),
            "gen_ai.request.top_p": float(sampling.top_p),
            "gen_ai.request.frequency_penalty": float(sampling.frequency_penalty),
            "gen_ai.request.presence_penalty": float(sampling.presence_penalty),
            "gen_ai.usage.input_tokens": usage.prompt_tokens,
            "gen_ai.usage.cache_read.input_tokens": usage.cached_tokens,
            "gen_ai.usage.output_tokens": usage.output_tokens,
        }
        if sampling.top_k:
            attributes["gen_ai.request.top_k"] = float(sampling.top_k)
        if sampling.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = sampling.max_tokens
        if sampling.seed is not None:
            attributes["gen_ai.request.seed"] = sampling.seed
        if report.first_token_seconds is not None:
            attributes["gen_ai.server.time_to_first_token"] = report.first_token_seconds
        return attributes


def _nanoseconds(seconds: float) -> int:
    return int(seconds * 1e9)
