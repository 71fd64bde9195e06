"""The gate before every path: who asks, from which page, and how much they send how slowly."""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
import os
import time
from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from milepost.errors import ConfigError
from milepost.server.access.exposure import is_loopback, is_own_host
from milepost.server.access.keys import read_keys
from milepost.server.access.refusals import (
    body_too_large,
    body_too_slow,
    forbidden,
    host_refused,
    unauthorized,
)
from milepost.server.access.tenants import ANONYMOUS, Tenant
from milepost.server.config import ServerConfig
from milepost.server.protocol.errors import HttpError, error_response

__all__ = ["MIN_BODY_RATE", "Gate", "Gatekeeper"]

logger = logging.getLogger(__name__)

MIN_BODY_RATE = 16 * 1024
"""Bytes a second at which a body must come once `ServerConfig.body_timeout` is over."""

# Said to whoever asks; all that is neither here nor a client's is for operators.
_OPEN_PATHS = frozenset({"/health", "/ready", "/version", "/openapi.json"})
_CLIENT_PATHS = ("/v1/", "/tokenize", "/detokenize")

# A refused client that still sends is listened to before the connection ends: else it sees a reset, not
# the reply.
_LINGER_SECONDS = 2.0
_LINGER_BYTES = 256 * 1024 * 1024

_HEADERS = {"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY"}


class Gatekeeper:
    """Knows the API keys and which paths need which.

    Args:
        config: what whoever runs the server decided.

    Raises:
        ConfigError: the keys can't be read.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._keys, _ = read_keys(config.api_keys, os.environ)
        self._is_local = is_loopback(config.host)

    @property
    def tenants(self) -> dict[str, Tenant]:
        """Those who share the server, by name; without keys everyone is one."""
        return self._keys.tenants or {ANONYMOUS.name: ANONYMOUS}

    def reload(self) -> None:
        """Read the keys again; when they can't be, the old ones stay. What runs goes on."""
        try:
            keys, _ = read_keys(self._config.api_keys, os.environ)
        except ConfigError as error:
            logger.error("The API keys stay as they are: %s", error)
            return
        if self._keys and not keys:
            logger.error("The API keys stay as they are: there are none any more, which takes a restart")
            return
        self._keys = keys
        logger.warning("The API keys were read again")

    def admit(self, path: str, headers: Headers) -> Tenant:
        """Whose request this is; `_require_right` says whether this path is theirs.

        Raises:
            HttpError: 401 without a key where one is needed, 421 for a page of another site.
        """
        if not self._keys:
            host = headers.get("host", "")
            if self._is_local and not is_own_host(host, self._config.allowed_hosts):
                raise host_refused(host)
            return ANONYMOUS
        if path in _OPEN_PATHS:
            return ANONYMOUS
        for_operators = _is_for_operators(path)
        key = _key_of(headers)
        if key is None:
            raise unauthorized(
                "This path needs an API key: send the header 'Authorization: Bearer KEY'.",
                for_people=for_operators,
            )
        tenant = self._keys.tenant(key)
        if tenant is None:
            raise unauthorized("The API key is none of this server's.", for_people=for_operators)
        return tenant


def _require_right(tenant: Tenant, path: str) -> None:
    """Let tenants have what is for clients, and operators everything.

    Raises:
        HttpError: 403.
    """
    if _is_for_operators(path) and not tenant.operator:
        raise forbidden()


def _is_for_operators(path: str) -> bool:
    return not path.startswith(_CLIENT_PATHS)


def _key_of(headers: Headers) -> str | None:
    """The key of ``Authorization: Bearer KEY``, or the password of ``Basic``, which browsers send."""
    scheme, _, credentials = headers.get("authorization", "").strip().partition(" ")
    credentials = credentials.strip()
    match scheme.lower():
        case "bearer":
            return credentials or None
        case "basic":
            try:
                pair = base64.b64decode(credentials, validate=True).decode()
            except (binascii.Error, UnicodeDecodeError):
                return None
            return pair.partition(":")[2] or None
        case _:
            return None


def _is_last(scope: Scope, headers: Headers) -> bool:
    """Whether a request has a body and its connection ends with its reply."""
    has_body = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
    return has_body and (scope["http_version"] == "1.0" or _says_close(headers.get("connection", "")))


def _says_close(connection: str) -> bool:
    return "close" in (word.strip() for word in connection.lower().split(","))


class Gate:
    """ASGI middleware that lets in what `Gatekeeper` admits, and bodies within their limits.

    The tenant and the time of arrival go into the scope's state.

    Args:
        app: what is behind it.
        keeper: whom to ask.
        config: the limits.
        on_refusal: called with each refusal before it is sent.
    """

    def __init__(
        self,
        app: ASGIApp,
        keeper: Gatekeeper,
        config: ServerConfig,
        on_refusal: Callable[[HttpError], None],
    ) -> None:
        self._app = app
        self._keeper = keeper
        self._config = config
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        body = _Body(receive, send, self._config, is_last=_is_last(scope, headers))
        state = scope.setdefault("state", {})
        try:
            body.check_length(headers)
            # Noted before it may be refused: the log says who tried.
            state["tenant"] = self._keeper.admit(scope["path"], headers)
            _require_right(state["tenant"], scope["path"])
        except HttpError as error:
            self._on_refusal(error)
            await error_response(error)(scope, receive, body.send)
            return
        state["arrival"] = time.monotonic()
        await self._app(scope, body.receive, body.send)


class _Body:
    """One request's body on its way in, and the reply on its way out."""

    def __init__(self, receive: Receive, send: Send, config: ServerConfig, *, is_last: bool) -> None:
        self._receive = receive
        self._send = send
        self._limit = config.max_body_bytes
        self._seconds = config.body_timeout
        self._began = time.monotonic()
        self._size = 0
        self._complete = False
        self._lingers = is_last

    def check_length(self, headers: Headers) -> None:
        """Refuse by its head a body that says that it is too large.

        Raises:
            HttpError: 413.
        """
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length[:20]) > self._limit:
            self._refuse_size()

    async def receive(self) -> Message:
        """The next part.

        Raises:
            HttpError: 413 when it is too large, 408 when it comes too slowly.
        """
        if self._complete:
            return await self._receive()  # a disconnect, whenever it comes
        deadline = self._began + self._seconds + self._size / MIN_BODY_RATE
        try:
            async with asyncio.timeout(max(0.0, deadline - time.monotonic())):
                message = await self._receive()
        except TimeoutError:
            raise body_too_slow(self._seconds, MIN_BODY_RATE) from None
        if message["type"] == "http.request":
            self._size += len(message.get("body", b""))
            self._complete = not message.get("more_body", False)
            if self._size > self._limit:
                self._refuse_size()
        return message

    async def send(self, message: Message) -> None:
        """The next part of the reply."""
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
        elif self._lingers and not self._complete and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            message = {"type": "http.response.body", "body": b"", "more_body": False}
        await self._send(message)

    def _refuse_size(self) -> None:
        self._lingers = True
        raise body_too_large(self._limit)

    async def _linger(self) -> None:
        """Take what still comes and drop it, within limits."""
        size = 0
        try:
            async with asyncio.timeout(_LINGER_SECONDS):
                while not self._complete and size < _LINGER_BYTES:
                    message = await self._receive()
                    size += len(message.get("body", b""))
                    self._complete = not message.get("more_body", False)  # as the end of the connection is
        except TimeoutError:
            pass
