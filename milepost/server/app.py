"""The ASGI application: routes and the one place where errors become replies."""

from __future__ import annotations

import logging

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from milepost.errors import MilepostError
from milepost.server.access.gate import Gate, Gatekeeper
from milepost.server.endpoints.cache import explain_cache, reset_cache
from milepost.server.endpoints.chat import chat_completions
from milepost.server.endpoints.completions import completions
from milepost.server.endpoints.reading import check_model, front_of
from milepost.server.front import Front
from milepost.server.protocol.errors import HttpError, error_response, to_http_error
from milepost.server.protocol.responses import Model, ModelList
from milepost.server.services import Services
from milepost.server.streaming import ClientDisconnectedError

__all__ = ["create_app"]

logger = logging.getLogger(__name__)


def create_app(services: Services) -> Starlette:
    """Build the application.

    Args:
        services: what to serve with; the caller starts and stops the engine.
    """
    keeper = Gatekeeper(services.config)
    app = Starlette(
        routes=[
            Route("/v1/models", _models, methods=["GET"]),
            Route("/v1/models/{model:path}", _model, methods=["GET"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/cache/explain", explain_cache, methods=["POST"]),
            Route("/cache/reset", reset_cache, methods=["POST"]),
            Route("/health", _health, methods=["GET"]),
            Route("/metrics", _metrics, methods=["GET"]),
        ],
        middleware=_middleware(services, keeper),
        exception_handlers={
            MilepostError: _on_error,
            HTTPException: _on_http_exception,
            ClientDisconnectedError: _on_disconnect,
            ClientDisconnect: _on_disconnect,
            RecursionError: _on_error,
            Exception: _on_error,
        },
    )
    app.state.front = Front(services)
    app.state.gatekeeper = keeper
    return app


def _middleware(services: Services, keeper: Gatekeeper) -> list[Middleware]:
    """What every request passes, outermost first."""
    config = services.config
    gate = Middleware(Gate, keeper=keeper, config=config, metrics=services.metrics)
    if not config.cors_origins:
        return [gate]
    # Before the gate: a browser asks without the key whether it may send it, and reads refusals too.
    cors = Middleware(
        CORSMiddleware,
        allow_origins=config.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["Authorization", "Content-Type"],
        expose_headers=["Retry-After"],
    )
    return [cors, gate]


async def _models(http: HttpRequest) -> Response:
    return _json(ModelList(data=[_model_object(front_of(http).services)]))


async def _model(http: HttpRequest) -> Response:
    services = front_of(http).services
    check_model(http.path_params["model"], services.model_name)
    return _json(_model_object(services))


def _model_object(services: Services) -> Model:
    return Model(
        id=services.model_name, created=services.created, max_model_len=services.engine.limits.max_length
    )


async def _health(http: HttpRequest) -> Response:
    front_of(http).check_open()
    return Response(b'{"status":"ok"}', media_type="application/json")


async def _metrics(http: HttpRequest) -> Response:
    return Response(front_of(http).metrics.render(), media_type=CONTENT_TYPE_LATEST)


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")


async def _on_error(http: HttpRequest, error: Exception) -> Response:
    # An exception that nobody foresaw is logged with its traceback by the server that runs the app.
    reply = to_http_error(error)
    front_of(http).metrics.http_error(reply.status)
    return error_response(reply)


async def _on_http_exception(http: HttpRequest, error: Exception) -> Response:
    """Starlette's own: no such path, no such method."""
    assert isinstance(error, HTTPException)
    path, method = http.url.path, http.method
    if error.status_code == 404:
        reply = HttpError(404, f"There is no {path} here.", code="not_found")
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        reply = HttpError(405, f"{path} does not take {method}. Use {allowed}.", code="method_not_allowed")
    else:
        reply = HttpError(error.status_code, error.detail)
    reply.headers.update(error.headers or {})
    front_of(http).metrics.http_error(reply.status)
    return error_response(reply)


async def _on_disconnect(_http: HttpRequest, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it
