"""Run the application on a port until told to stop; then finish what runs."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool

from milepost.errors import ConfigError
from milepost.server.access.connections import GuardedConnection, guarded
from milepost.server.access.gate import Gatekeeper
from milepost.server.access.tls import tls_context
from milepost.server.front import Front

__all__ = ["DrainingServer", "bind", "serve"]

logger = logging.getLogger(__name__)

BACKLOG = 2048

# After the last request has ended, its bytes may still be on their way to a slow reader.
FLUSH_SECONDS = 5

# Longer than common clients keep theirs: who hangs up first has no request of its own under way.
KEEP_ALIVE_SECONDS = 30

_TICKS_A_SWEEP = 5  # of a tenth of a second each


def bind(host: str, port: int) -> socket.socket:
    """Take a port, before the model is loaded: a taken one must not cost a minute.

    Args:
        host: an address or name of this machine.
        port: 0 takes any free one.

    Raises:
        ConfigError: the port is taken or may not be used, or the host is not this machine's.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"Can't listen on {host}:{port}: {error}. Choose another --host.") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Can't listen on {host}:{port}: {error.strerror}. Choose another --port, or 0 for any free one."
        ) from None
    return listener


def serve(
    app: Starlette,
    listener: socket.socket,
    *,
    on_ready: Callable[[str], None] | None = None,
) -> None:
    """Serve until SIGTERM or SIGINT; then refuse new requests, finish the running ones and return.

    Running requests that outlast the config's ``drain_seconds`` are aborted, by a second signal at once.

    Args:
        app: from `create_app`.
        listener: from `bind`; closed at the end.
        on_ready: called with the server's address once it answers.
    """
    DrainingServer(app, on_ready=on_ready).run([listener])


class DrainingServer(uvicorn.Server):
    """Uvicorn closes its port at the first signal; this one answers 503 until the running requests end.

    The arguments are those of `serve`.
    """

    def __init__(
        self,
        app: Starlette,
        *,
        on_ready: Callable[[str], None] | None = None,
    ) -> None:
        self._front: Front = app.state.front
        self._keeper: Gatekeeper = app.state.gatekeeper
        options = self._front.services.config
        config = uvicorn.Config(
            app,
            http=guarded(options, self._front.metrics.http_error),
            loop="uvloop",
            lifespan="off",
            ws="none",
            log_level=options.log_level,
            log_config=None,  # `milepost.server.telemetry.logs` decides
            access_log=False,  # and tells more of a request
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=FLUSH_SECONDS,
        )
        if options.tls_cert is not None and options.tls_key is not None:
            context = tls_context(options.tls_cert, options.tls_key)
            config.ssl_context_factory = lambda *_: context
        super().__init__(config)
        self._drain_seconds = options.drain_seconds
        self._deadline: float | None = None
        self._has_aborted = False
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to answer, and say so."""
        # Loads what the first stream would: while others wait, and not without a descriptor.
        await run_in_threadpool(threading.get_ident)
        await super().startup(sockets)
        self._front.telemetry.start()
        if self._front.services.config.api_keys and threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload_keys)
        if self._on_ready is not None and sockets:
            host, port = sockets[0].getsockname()[:2]
            scheme = "https" if self.config.is_ssl else "http"
            self._on_ready(f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}")

    def reload_keys(self) -> None:
        """Read the API keys again: what SIGHUP does where there is a file of them."""
        self._keeper.reload()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """First signal: drain. Second: abort what still runs. The process then ends in its own time."""
        now = time.monotonic()
        if self._front.draining:
            self._deadline = now
        else:
            self._front.draining = True
            self._deadline = now + self._drain_seconds

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second: whether to stop now."""
        if await super().on_tick(counter):
            return True
        if counter % _TICKS_A_SWEEP == 0:
            self._sweep()
        if self._deadline is None:
            return False
        if self._front.num_running == 0:
            return True
        late = time.monotonic() - self._deadline
        if late >= 0 and not self._has_aborted:
            logger.warning("The time to drain is over: aborting %d requests", self._front.num_running)
            self._has_aborted = True
            self._front.abort_all()
        if late >= FLUSH_SECONDS:
            self._hang_up()  # on those who do not even take that their request was aborted
        return late >= FLUSH_SECONDS

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port, let connections end within `FLUSH_SECONDS`, and cut off those that do not."""
        await super().shutdown(sockets)
        self._hang_up()
        await self._front.telemetry.stop()

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def _sweep(self) -> None:
        now = asyncio.get_running_loop().time()
        for connection in list(self.server_state.connections):
            if isinstance(connection, GuardedConnection) and connection.sweep(now):
                self._front.metrics.aborted("slow_reader")
