"""The ASGI application: routes and the one place where errors become replies."""

from __future__ import annotations

import asyncio
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from milepost.errors import MilepostError
from milepost.server.access.gate import Gate, Gatekeeper
from milepost.server.endpoints.cache import explain_cache, reset_cache
from milepost.server.endpoints.chat import chat_completions
from milepost.server.endpoints.completions import completions
from milepost.server.endpoints.health import health, metrics, ready, version
from milepost.server.endpoints.models import list_models, show_model
from milepost.server.endpoints.page import page, stats_json
from milepost.server.endpoints.reading import front_of
from milepost.server.endpoints.self_description import openapi
from milepost.server.endpoints.tokens import detokenize, tokenize
from milepost.server.front import Front
from milepost.server.protocol.error_codes import ErrorCode
from milepost.server.protocol.errors import HttpError, error_response, to_http_error
from milepost.server.services import Services
from milepost.server.streaming import ClientDisconnectedError
from milepost.server.telemetry.calls import note_refusal

__all__ = ["create_app"]

# Requests that are read, compiled or tokenised for long at once; Python has 5 threads at least.
MAX_LONG_WORK = 2


def create_app(services: Services) -> Starlette:
    """Build the application.

    Args:
        services: what to serve with; the caller starts and stops the engine.
    """
    keeper = Gatekeeper(services.config)
    app = _App(
        routes=[
            Route("/v1/models", list_models, methods=["GET"]),
            Route("/v1/models/{model:path}", show_model, methods=["GET"]),
            Route("/v1/chat/completions", chat_completions, methods=["POST"]),
            Route("/v1/completions", completions, methods=["POST"]),
            Route("/tokenize", tokenize, methods=["POST"]),
            Route("/detokenize", detokenize, methods=["POST"]),
            Route("/cache/explain", explain_cache, methods=["POST"]),
            Route("/cache/reset", reset_cache, methods=["POST"]),
            Route("/health", health, methods=["GET"]),
            Route("/ready", ready, methods=["GET"]),
            Route("/version", version, methods=["GET"]),
            Route("/openapi.json", openapi, methods=["GET"]),
            Route("/metrics", metrics, methods=["GET"]),
            *_page_routes(services),
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
    # A redirect would lead to whatever host the client names, by plain HTTP behind a gateway that ends TLS.
    app.router.redirect_slashes = False
    app.state.front = Front(services)
    app.state.long_work = asyncio.Semaphore(MAX_LONG_WORK)
    app.state.gatekeeper = keeper
    return app


def _middleware(services: Services, keeper: Gatekeeper) -> list[Middleware]:
    """What every request passes, outermost first."""
    config = services.config
    gate = Middleware(Gate, keeper=keeper, config=config, on_refusal=partial(note_refusal, services.metrics))
    if not config.cors_origins:
        return [gate]
    # Before the gate: a browser asks without the key whether it may send it, and reads refusals too.
    cors = Middleware(
        CORSMiddleware,
        allow_origins=config.cors_origins,
        allow_methods=["GET", "POST"],
        allow_headers=["*"],  # clients bring headers of their own, such as x-stainless-lang
        expose_headers=["Retry-After", "X-Request-Id"],
    )
    return [cors, gate]


class _App(Starlette):
    """An application whose every reply has the request's id, those to what nobody foresaw too."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await super().__call__(scope, receive, send)
            return
        front = self.state.front
        assert isinstance(front, Front)
        await front.telemetry.calls.serve(super().__call__, scope, receive, send)


def _page_routes(services: Services) -> list[Route]:
    if not services.config.page:
        return []
    return [Route("/", page, methods=["GET"]), Route("/stats.json", stats_json, methods=["GET"])]


async def _on_error(http: HttpRequest, error: Exception) -> Response:
    # An exception that nobody foresaw is logged with its traceback by the server that runs the app.
    return _refuse(http, to_http_error(error))


async def _on_http_exception(http: HttpRequest, error: Exception) -> Response:
    """Starlette's own: no such path, no such method."""
    assert isinstance(error, HTTPException)
    path, method = http.url.path, http.method
    if error.status_code == 404:
        reply = HttpError(
            404, f"There is no {path} here. /openapi.json lists what there is.", code=ErrorCode.NOT_FOUND
        )
    elif error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        reply = HttpError(
            405, f"{path} does not take {method}. Use {allowed}.", code=ErrorCode.METHOD_NOT_ALLOWED
        )
    else:
        reply = HttpError(error.status_code, error.detail)
    reply.headers.update(error.headers or {})
    return _refuse(http, reply)


def _refuse(http: HttpRequest, reply: HttpError) -> Response:
    note_refusal(front_of(http).metrics, reply)
    return error_response(reply)


async def _on_disconnect(_http: HttpRequest, _error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it
