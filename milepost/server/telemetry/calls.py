"""One HTTP request from its first byte to the end of all that it set going: its id, and what is told of it.

A call ends when its reply is sent *and* the engine has told the end of each request behind it; only then
is everything known that a log line or a trace says. A client that leaves ends the first before the second.
"""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field

from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from milepost.engine.reports import RequestReport
from milepost.server.access.tenants import tenant_of
from milepost.server.protocol.errors import HttpError
from milepost.server.telemetry.metrics import Metrics
from milepost.types import Request

__all__ = ["Call", "Calls", "current_call", "note_refusal"]

MAX_ID_CHARS = 128
MAX_LOGGED_BYTES = 65536  # of a prompt or a reply, where they are logged at all

_VALID_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._:@/+=-]{{0,{MAX_ID_CHARS - 1}}}")

# How long the end of a call waits for the engine's last word; a stopped engine says none.
PATIENCE_SECONDS = 5.0

current_call: ContextVar[Call | None] = ContextVar("current_call", default=None)
"""The call that the running code serves, also in its tasks and threads."""


@dataclass(eq=False)
class Call:
    """One HTTP request and its reply.

    Attributes:
        id: the client's own, if it sent a valid one; else made.
        scope: of ASGI; the tenant is in its state.
        began: on the monotonic clock.
        status: of the reply; 499 when the client left before it.
        code: of the error in the reply.
        duration: seconds until the reply was sent; None until then.
        requests: what the engine was asked, by request id.
        reports: of those of them that have ended.
        asked: the body, where it is to be logged.
        said: the reply, likewise.
    """

    id: str
    scope: Scope
    began: float
    status: int = 499
    code: str | None = None
    duration: float | None = None
    requests: dict[str, Request] = field(default_factory=dict)
    reports: list[RequestReport] = field(default_factory=list)
    asked: bytearray = field(default_factory=bytearray)
    said: bytearray = field(default_factory=bytearray)

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return tenant_of(HTTPConnection(self.scope)).name

    @property
    def is_over(self) -> bool:
        """Whether everything about it is known."""
        return self.duration is not None and len(self.reports) == len(self.requests)


class Calls:
    """Gives every HTTP request its id and tells its end.

    Args:
        metrics: told of tenants' tokens and the like.
        on_end: called on the event loop when a call is over.
        keep_texts: whether prompts and replies are kept to be logged.
    """

    def __init__(self, metrics: Metrics, on_end: Callable[[Call], None], *, keep_texts: bool = False) -> None:
        self._metrics = metrics
        self._on_end = on_end
        self._keep_texts = keep_texts
        self._by_request: dict[str, tuple[Call, asyncio.AbstractEventLoop]] = {}
        metrics.on_finished = self._finished

    async def serve(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
        """Let `app` answer a request, with its id in the reply's headers."""
        scope.setdefault("state", {})
        call = Call(id=_id_of(scope), scope=scope, began=time.monotonic())
        # Never taken back: the context is this request's own, and the server behind logs in it too.
        current_call.set(call)

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                headers = [(name, value) for name, value in message["headers"] if name != b"x-request-id"]
                message = {**message, "headers": [*headers, (b"x-request-id", call.id.encode())]}
            elif self._keep_texts and len(call.said) < MAX_LOGGED_BYTES:
                call.said += message.get("body", b"")
            await send(message)

        async def listen() -> Message:
            message = await receive()
            if self._keep_texts and message["type"] == "http.request":
                call.asked += message.get("body", b"")
            return message

        try:
            await app(scope, listen, answer)
        finally:
            call.duration = time.monotonic() - call.began
            self._end_if_over(call)
            if not call.is_over:
                asyncio.get_running_loop().call_later(PATIENCE_SECONDS, self._give_up, call)

    @contextmanager
    def submitting(self, request: Request) -> Iterator[None]:
        """The engine is about to be asked: what it reports of `request` belongs to the current call."""
        call = current_call.get()
        if call is None:
            yield
            return
        call.requests[request.request_id] = request
        self._by_request[request.request_id] = (call, asyncio.get_running_loop())
        try:
            yield
        except BaseException:
            del call.requests[request.request_id]
            del self._by_request[request.request_id]
            raise

    def _finished(self, report: RequestReport) -> None:
        """Called on the engine's thread."""
        found = self._by_request.pop(report.request_id, None)
        if found is not None:
            call, loop = found
            with suppress(RuntimeError):  # the loop is closed: nobody can tell any more
                loop.call_soon_threadsafe(self._reported, call, report)

    def _reported(self, call: Call, report: RequestReport) -> None:
        if report.request_id in call.requests:
            call.reports.append(report)
            self._end_if_over(call)

    def _give_up(self, call: Call) -> None:
        """An engine that has failed or stopped reports nothing of requests that it had not begun."""
        if call.is_over:
            return
        told = {report.request_id for report in call.reports}
        for request_id in [*call.requests]:
            if request_id not in told:
                del call.requests[request_id]
                self._by_request.pop(request_id, None)
        self._end_if_over(call)

    def _end_if_over(self, call: Call) -> None:
        if not call.is_over:
            return
        self._metrics.answered(call.tenant, call.reports)
        # The choices of a prompt have the very same tuple.
        for num_choices in Counter(id(each.prompt_token_ids) for each in call.requests.values()).values():
            self._metrics.asked(num_choices)
        self._on_end(call)


def note_refusal(metrics: Metrics, error: HttpError) -> None:
    """Count an error's reply, and let the call that it ends tell its code."""
    metrics.http_error(error.status, error.detail.code)
    call = current_call.get()
    if call is not None:
        call.code = error.detail.code


def _id_of(scope: Scope) -> str:
    given = Headers(scope=scope).get("x-request-id", "")
    return given if _VALID_ID.fullmatch(given) else uuid.uuid4().hex
