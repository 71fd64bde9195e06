"""What whoever runs the server decides: its address, who may ask for how much, and what it tells."""

from __future__ import annotations

import math
import re

import msgspec

from milepost.byte_counts import parse_bytes
from milepost.error_text import one_of
from milepost.errors import ConfigError

__all__ = ["LOG_FORMATS", "LOG_LEVELS", "ServerConfig"]

LOG_LEVELS = ("critical", "error", "warning", "info", "debug")
LOG_FORMATS = ("text", "json")
MAX_PORT = 65535

# As browsers send it: "null", which they send for pages of no site in particular, is none.
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/?#@A-Z]+")


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The server's options, checked when built.

    Attributes:
        host: an address or name of this machine.
        port: 0 takes any free one.
        api_keys: a TOML file of API keys, each a tenant's; None lets everyone ask, unless the
            environment has keys.
        allowed_hosts: names of this server beside ``localhost``, for a proxy before a server that listens
            on this machine alone and has no keys; ``*`` for all.
        max_body: bytes of a request's body, as a number or such as "32MiB".
        body_timeout: seconds in which a body must have come, and one more for each 16 KiB of it.
        max_waiting: replies that wait for their turn, of all tenants together; more are refused with 429.
        max_connections: connections open at once.
        max_choices: replies that one HTTP request may ask for, its prompts times its ``n``.
        request_timeout: seconds that a request may take from its arrival to its end; None for no limit.
        stalled_reader_timeout: seconds for which a client may take nothing of a stream that has news.
        tls_cert: a PEM file of the certificate chain; with `tls_key`, or None for plain HTTP.
        tls_key: a PEM file of its key.
        cors_origins: the origins whose pages may ask, ``*`` for all; none by default.
        drain_seconds: how long running requests may take after SIGTERM; then they are aborted.
        log_level: of the server's log.
        log_format: "text", or "json" for one object a line.
        log_prompts: whether prompts and replies are logged, which they never are otherwise.
        metrics_prefix: what the names of metrics begin with; "vllm" lets dashboards made for vLLM carry over.
        otlp_endpoint: where traces of requests are sent by OTLP over HTTP; None for nowhere.
        page: whether ``/`` shows what happens.

    Raises:
        ConfigError: a value of the wrong kind or out of range, with the limit.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    api_keys: str | None = None
    allowed_hosts: tuple[str, ...] = ()
    max_body: int | str = "32MiB"
    body_timeout: float = 30.0
    max_waiting: int = 1024
    max_connections: int = 4096
    max_choices: int = 128
    request_timeout: float | None = None
    stalled_reader_timeout: float = 60.0
    tls_cert: str | None = None
    tls_key: str | None = None
    cors_origins: tuple[str, ...] = ()
    drain_seconds: float = 60.0
    log_level: str = "warning"
    log_format: str = "text"
    log_prompts: bool = False
    metrics_prefix: str = "milepost"
    otlp_endpoint: str | None = None
    page: bool = True

    def __post_init__(self) -> None:
        if not 0 <= self.port <= MAX_PORT:  # getaddrinfo would wrap it around
            raise ConfigError(f"port must be between 0 and {MAX_PORT}. Given: {self.port}.")
        parse_bytes(self.max_body, name="max_body")
        for name in ("max_waiting", "max_connections", "max_choices"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1. Given: {getattr(self, name)}.")
        for name in ("body_timeout", "request_timeout", "stalled_reader_timeout", "drain_seconds"):
            seconds = getattr(self, name)
            least = 0 if name == "drain_seconds" else math.ulp(0.0)
            if seconds is not None and not least <= seconds < math.inf:  # refuses NaN too
                limit = "at least 0" if name == "drain_seconds" else "more than 0"
                raise ConfigError(f"{name} must be {limit} seconds. Given: {seconds}.")
        if (self.tls_cert is None) != (self.tls_key is None):
            given, other = ("tls_cert", "key") if self.tls_key is None else ("tls_key", "certificate chain")
            raise ConfigError(f"{given} needs its {other} too: both are files in PEM.")
        for origin in self.cors_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    "cors_origins must be such as https://example.org, without a path, or *. "
                    f"Given: {origin!r:.100}."
                )
        self._check_telling()

    def _check_telling(self) -> None:
        if self.otlp_endpoint is not None and not self.otlp_endpoint.startswith(("http://", "https://")):
            raise ConfigError(
                "otlp_endpoint must be an http:// or https:// address, such as "
                f"http://localhost:4318/v1/traces. Given: {self.otlp_endpoint!r}."
            )
        if self.log_level not in LOG_LEVELS:
            raise ConfigError(one_of("log_level", self.log_level, LOG_LEVELS))
        if self.log_format not in LOG_FORMATS:
            raise ConfigError(one_of("log_format", self.log_format, LOG_FORMATS))
        if not self.metrics_prefix.isidentifier() or not self.metrics_prefix.isascii():
            raise ConfigError(
                f"metrics_prefix must be letters, digits and underscores. Given: {self.metrics_prefix!r}."
            )

    @property
    def max_body_bytes(self) -> int:
        """`max_body` as a number."""
        return parse_bytes(self.max_body, name="max_body")
