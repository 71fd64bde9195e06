"""``GET /health``, ``/ready`` and ``/version``: for whoever watches the process.

Kubernetes kills what fails its liveness probe, and sends nothing to what fails its readiness probe. So
``/health``, for the former, fails only when a restart is the cure; ``/ready``, for the latter, also while
the server finishes what runs before it stops.
"""

from __future__ import annotations

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from milepost import __version__
from milepost.server.endpoints.reading import front_of
from milepost.server.protocol.responses import Health, Version

__all__ = ["health", "ready", "version"]


async def health(http: HttpRequest) -> Response:
    """Whether the process is of use: 503 once its engine has failed."""
    front_of(http).check_alive()
    return _json(Health())


async def ready(http: HttpRequest) -> Response:
    """Whether new requests are taken: 503 while the server drains, too."""
    front_of(http).check_open()
    return _json(Health())


async def version(_http: HttpRequest) -> Response:
    """The version of Milepost."""
    return _json(Version(version=__version__))


def _json(body: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(body), media_type="application/json")
