"""``GET /health``, ``/ready``, ``/version`` and ``/metrics``: for whoever watches the process.

Kubernetes kills what fails its liveness probe, and sends nothing to what fails its readiness probe. So
``/health``, for the former, fails only when a restart is the cure; ``/ready``, for the latter, also while
the server finishes what runs before it stops.
"""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from milepost import __version__
from milepost.server.endpoints.reading import front_of
from milepost.server.protocol.responses import Health, Version, json_response

__all__ = ["health", "metrics", "ready", "version"]


async def health(http: HttpRequest) -> Response:
    """Whether the process is of use: 503 once its engine has failed."""
    front_of(http).check_alive()
    return json_response(Health())


async def ready(http: HttpRequest) -> Response:
    """Whether new requests are taken: 503 while the server drains, too."""
    front_of(http).check_open()
    return json_response(Health())


async def version(_http: HttpRequest) -> Response:
    """The version of Milepost."""
    return json_response(Version(version=__version__))


async def metrics(http: HttpRequest) -> Response:
    """All counts, in Prometheus' text format."""
    return Response(front_of(http).metrics.render(), media_type=CONTENT_TYPE_LATEST)
