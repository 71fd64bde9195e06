"""The server's log: text or one JSON object a line, each with the id of the request that it is about."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from milepost.server.config import ServerConfig
from milepost.server.telemetry.calls import MAX_LOGGED_BYTES, Call, current_call
from milepost.server.telemetry.log_output import StandardError

__all__ = ["JsonFormatter", "TextFormatter", "call_fields", "configure_logging", "log_call", "tell"]

logger = logging.getLogger("milepost.server.requests")

# Asked every few seconds by machines: told where everything is told.
_QUIET_PATHS = frozenset({"/health", "/ready", "/metrics", "/stats.json"})
_MAX_PATH_CHARS = 200
# Of a body, what may be shown where prompts may: not its cache salt, which is a secret.
_PROMPT_FIELDS = ("messages", "prompt", "tools")


def configure_logging(config: ServerConfig) -> None:
    """Send all logs of this process to standard error, in the form and from the level that `config` says."""
    handler = StandardError()
    handler.setFormatter(JsonFormatter() if config.log_format == "json" else TextFormatter())
    root = logging.getLogger()
    root.handlers[:] = [*(one for one in root.handlers if not isinstance(one, StandardError)), handler]
    root.setLevel(config.log_level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True


def tell(level: int, message: str) -> None:
    """Log what whoever starts a server must see, from whatever level the log begins."""
    record = logging.LogRecord("milepost.server", level, __file__, 0, message, None, None)
    for handler in logging.getLogger().handlers:
        handler.handle(record)


class TextFormatter(logging.Formatter):
    """``time level logger [request id] message key=value ...``, and a traceback below."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        request_id = _request_id(record)
        about = f" [{request_id}]" if request_id else ""
        fields = "".join(f" {name}={_value(str(value))}" for name, value in _fields(record).items())
        message = _plain(record.getMessage())
        line = f"{_time(record)} {record.levelname:<7} {record.name}{about} {message}{fields}"
        trace = _traceback(self, record)
        # Set in: what an exception says may look like a line of the log.
        return "\n".join([line, *(f"    {_plain(part)}" for part in trace.splitlines())])


class JsonFormatter(logging.Formatter):
    """One JSON object a line; a traceback is a field of it."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        body: dict[str, Any] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        request_id = _request_id(record)
        if request_id:
            body["request_id"] = request_id
        body |= _fields(record)
        trace = _traceback(self, record)
        if trace:
            body["traceback"] = trace
        return _plain_json(json.dumps(body, ensure_ascii=False, default=str))


def log_call(call: Call) -> None:
    """Tell of a request that is over: one line at info."""
    path = call.scope["path"]
    level = logging.DEBUG if path in _QUIET_PATHS and call.status < 400 else logging.INFO
    if not logger.isEnabledFor(level):
        return
    extra = {"fields": call_fields(call), "request_id": call.id}
    # What stands behind a space is the next field.
    shown = path[:_MAX_PATH_CHARS].replace(" ", "%20")
    logger.log(level, "%s %s %d", call.scope["method"], shown, call.status, extra=extra)


def call_fields(call: Call) -> dict[str, Any]:
    """What is told of a request beside its path and its status; times in seconds."""
    fields: dict[str, Any] = {"tenant": call.tenant}
    reports = call.reports
    if reports:
        usages = [report.usage for report in reports]
        fields["prompt_tokens"] = sum(usage.prompt_tokens for usage in usages)
        fields["cached_tokens"] = sum(usage.cached_tokens for usage in usages)
        fields["output_tokens"] = sum(usage.output_tokens for usage in usages)
        waits = [report.first_token_seconds for report in reports]
        first = [seconds for seconds in waits if seconds is not None]
        if first:
            fields["ttft"] = round(min(first), 6)
        fields["finish_reason"] = ",".join(dict.fromkeys(report.reason.value for report in reports))
    if call.code is not None:
        fields["code"] = call.code
    fields["duration"] = round(call.duration or 0.0, 6)
    if call.asked and call.requests:
        fields["prompt"] = _prompt(bytes(call.asked))
        fields["reply"] = call.said[:MAX_LOGGED_BYTES].decode(errors="replace")
    return fields


def _prompt(body: bytes) -> str:
    """The prompt in a body that was served."""
    fields = json.loads(body)
    shown = {name: fields[name] for name in _PROMPT_FIELDS if name in fields}
    return json.dumps(shown, ensure_ascii=False)[:MAX_LOGGED_BYTES]


def _request_id(record: logging.LogRecord) -> str | None:
    told: str | None = getattr(record, "request_id", None)
    if told is not None:
        return told
    call = current_call.get()
    return None if call is None else call.id


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    return fields


def _time(record: logging.LogRecord) -> str:
    return (
        datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    )


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


def _plain(text: str) -> str:
    """`text` on one line: a path or a message may hold what would look like another line of the log."""
    return _printable(text, lambda char: char.encode("unicode_escape").decode())


def _plain_json(text: str) -> str:
    """JSON on one line, without what some readers take for an end of line and terminals for a command."""
    return _printable(text, lambda char: json.dumps(char)[1:-1])


def _printable(text: str, escape: Callable[[str], str]) -> str:
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else escape(char) for char in text)


def _value(text: str) -> str:
    """A field's value, in quotes if one could not tell where it ends."""
    return _plain(json.dumps(text, ensure_ascii=False) if " " in text or '"' in text else text)
