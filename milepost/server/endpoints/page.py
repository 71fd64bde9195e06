"""The page at ``/`` and the numbers that it draws, ``/stats.json``.

The page is one file that loads nothing else: its style and its script are in it, and its policy lets the
browser run these two and nothing that anybody might slip in, and ask this server only.
"""

from __future__ import annotations

import base64
import hashlib
import time
from functools import cache
from html import escape
from importlib.resources import files

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from milepost import __version__
from milepost.server.endpoints.reading import front_of
from milepost.server.protocol.error_codes import ErrorCode
from milepost.server.protocol.errors import HttpError
from milepost.server.protocol.page_stats import PageStats
from milepost.server.protocol.responses import json_response
from milepost.server.telemetry.history import SAMPLES
from milepost.server.telemetry.telemetry import SAMPLE_SECONDS

__all__ = ["page", "stats_json"]

_MAX_NUMBER = 1 << 53


async def page(_http: HttpRequest) -> Response:
    """What happens, drawn in the browser."""
    html, policy = _html_and_policy()
    headers = {
        "Content-Security-Policy": policy,
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return Response(html, media_type="text/html; charset=utf-8", headers=headers)


async def stats_json(http: HttpRequest) -> Response:
    """The numbers of the page, from the moment on that ``?since=`` names."""
    front = front_of(http)
    services, telemetry, metrics = front.services, front.telemetry, front.metrics
    stats = services.engine.stats()
    cache_stats = stats.cache
    body = PageStats(
        model=services.model_name,
        version=__version__,
        time=time.time(),
        uptime=telemetry.uptime,
        draining=front.draining,
        failure=services.engine.failure is not None,
        total_pages=stats.scheduler.pages.total - 1,
        page_bytes=0 if cache_stats is None else cache_stats.page_bytes,
        seconds=SAMPLE_SECONDS,
        kept=SAMPLES,
        totals={
            "prompt_tokens": metrics.prompt_tokens,
            "cached_tokens": metrics.cached_tokens,
            "output_tokens": metrics.output_tokens,
            "requests": stats.scheduler.finished,
            "preemptions": stats.scheduler.preemptions,
            "steps": stats.scheduler.steps,
            "looked_up": 0 if cache_stats is None else cache_stats.looked_up_tokens,
            "hit": 0 if cache_stats is None else cache_stats.hit_tokens,
        },
        moments=telemetry.history.since(_since(http)),
    )
    return json_response(body, {"Cache-Control": "no-store"})


def _since(http: HttpRequest) -> int:
    given = http.query_params.get("since", "0")
    if not (given.isascii() and given.isdigit() and len(given) < 17 and int(given) <= _MAX_NUMBER):
        raise HttpError(
            400,
            f"since must be the number of a moment. Given: '{given}'.",
            param="since",
            code=ErrorCode.INVALID_VALUE,
        )
    return int(given)


@cache
def _html_and_policy() -> tuple[bytes, str]:
    """The file, and its content security policy."""
    frame, style, script = (_asset(name) for name in ("page.html", "page.css", "page.js"))
    charts = _asset("charts.js")
    script = f"{charts}\n{script}"
    html = frame.replace("{{version}}", escape(__version__))
    html = html.replace("{{style}}", style).replace("{{script}}", script)
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return html.encode(), policy


def _asset(name: str) -> str:
    return files("milepost").joinpath("assets", "live", name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
