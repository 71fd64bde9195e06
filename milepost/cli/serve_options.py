"""The options of ``milepost serve`` that are not the engine's; `milepost.server.config` checks them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from milepost.cli.config_file import NO_FILE, ConfigFile
from milepost.cli.option_groups import option_group, with_options
from milepost.cli.word_completion import one_of_words
from milepost.errors import ConfigError

if TYPE_CHECKING:
    from milepost.server.config import ServerConfig

__all__ = ["server_options", "take_server_config"]

F = TypeVar("F", bound=Callable[..., Any])

_address = option_group("Address")
_access = option_group("Access and limits")
_telling = option_group("What it tells")

_LEVELS = ("critical", "error", "warning", "info", "debug")

# Defaults are told here and set in `ServerConfig`, which loads what `milepost --help` need not wait for;
# a test holds the two together.
_SERVER_OPTIONS = {
    "host": _address("--host", metavar="ADDRESS", help="Where to listen.  [default: 127.0.0.1]"),
    "port": _address("--port", type=int, help="0 takes any free one.  [default: 8000]"),
    "tls_cert": _address("--tls-cert", metavar="FILE", help="Certificate chain in PEM: serve HTTPS."),
    "tls_key": _address("--tls-key", metavar="FILE", help="The certificate's key in PEM."),
    "cors_origins": _address(
        "--cors-origin",
        "cors_origins",
        multiple=True,
        metavar="ORIGIN",
        help="A site whose pages may ask, such as https://example.org; may be repeated.  [default: none]",
    ),
    "api_keys": _access(
        "--api-keys",
        metavar="FILE",
        help="API keys in TOML, each a tenant's; one or several may also be in $MILEPOST_API_KEYS.",
    ),
    "allowed_hosts": _access(
        "--allowed-host",
        "allowed_hosts",
        multiple=True,
        metavar="NAME",
        help="A name that a proxy on this machine asks a server without keys for.  [default: none]",
    ),
    "max_body": _access("--max-body", metavar="SIZE", help="Of a request's body.  [default: 32MiB]"),
    "body_timeout": _access(
        "--body-timeout",
        type=float,
        metavar="S",
        help="Time for a request's body, and a second more for each 16 KiB.  [default: 30]",
    ),
    "max_waiting": _access(
        "--max-waiting",
        type=int,
        metavar="N",
        help="Requests that wait; more are refused with 429.  [default: 1024]",
    ),
    "max_connections": _access(
        "--max-connections", type=int, metavar="N", help="Open at once.  [default: 4096]"
    ),
    "max_choices": _access(
        "--max-choices",
        type=int,
        metavar="N",
        help="Replies of one HTTP request, its prompts times its n.  [default: 128]",
    ),
    "request_timeout": _access(
        "--request-timeout", type=float, metavar="S", help="Time for a whole request.  [default: no limit]"
    ),
    "stalled_reader_timeout": _access(
        "--stalled-reader-timeout",
        type=float,
        metavar="S",
        help="A stream whose client takes nothing for so long is ended.  [default: 60]",
    ),
    "drain_seconds": _access(
        "--drain-seconds",
        type=float,
        metavar="S",
        help="Time for running requests at the end.  [default: 60]",
    ),
    "log_level": _telling(
        "--log-level",
        metavar="|".join(_LEVELS),
        shell_complete=one_of_words(_LEVELS),
        help="[default: warning]",
    ),
    "log_format": _telling(
        "--log-format",
        metavar="text|json",
        shell_complete=one_of_words(("text", "json")),
        help="[default: text]",
    ),
    "log_prompts": _telling(
        "--log-prompts/--no-log-prompts",
        default=None,
        help="Log prompts and replies too, which is off for a reason.",
    ),
    "metrics_prefix": _telling(
        "--metrics-prefix",
        metavar="NAME",
        help="Of the names of metrics; vllm lets its dashboards carry over.  [default: milepost]",
    ),
    "otlp_endpoint": _telling(
        "--otlp-endpoint", metavar="URL", help="Send traces of requests there, by OTLP over HTTP."
    ),
    "page": _telling("--page/--no-page", default=None, help="Show what happens at /.  [default: on]"),
}


def server_options(command: F) -> F:
    """The server's options; the command hands its keyword arguments to `take_server_config`."""
    return with_options(command, [*_SERVER_OPTIONS.values()])


def take_server_config(options: dict[str, Any], file: ConfigFile = NO_FILE) -> ServerConfig:
    """Remove the server's options from `options`; those not given are the file's, or keep their defaults.

    Raises:
        ConfigError: a value is wrong; its name is as on the command line, or with its place in the file.
    """
    from milepost.server.config import ServerConfig  # with the HTTP stack, which takes a while

    given = {name: options.pop(name, None) for name in _SERVER_OPTIONS}
    said = {name: value for name, value in given.items() if value not in (None, ())}
    try:
        return ServerConfig(**{**file.server, **said})
    except ConfigError as error:
        name, _, rest = str(error).partition(" ")
        if name in file.server and name not in said:
            raise ConfigError(f"{file.where('server', name)}: {error}") from None
        raise ConfigError(f"--{name.replace('_', '-')} {rest}" if name in given else str(error)) from None
