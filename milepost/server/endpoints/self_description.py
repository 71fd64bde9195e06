"""``GET /openapi.json``: what this server takes and answers, in OpenAPI 3.1."""

from __future__ import annotations

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.routing import Route

from milepost import __version__
from milepost.server.endpoints.reading import front_of
from milepost.server.protocol.openapi import describe

__all__ = ["openapi"]


async def openapi(http: HttpRequest) -> Response:
    """The description, which is the same for as long as the server runs."""
    services = front_of(http).services
    paths = {route.path.replace(":path", "") for route in http.app.routes if isinstance(route, Route)}
    described = describe(
        paths, version=__version__, max_choices=services.config.max_choices, model=services.model_name
    )
    return Response(msgspec.json.encode(described), media_type="application/json")
