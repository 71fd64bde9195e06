"""Error replies in OpenAI's shape: ``{"error": {"message", "type", "param", "code"}}``."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from milepost.errors import (
    CheckpointError,
    EngineStoppedError,
    ExecutionError,
    InputError,
    MilepostError,
    RequestError,
    RequestTooLargeError,
    TokenizerError,
    TraceError,
)
from milepost.server.protocol.error_codes import ErrorCode
from milepost.server.protocol.leaks import without_paths

__all__ = ["ErrorBody", "ErrorDetail", "HttpError", "error_response", "to_http_error", "unavailable"]

INVALID_REQUEST = "invalid_request_error"
SERVER_ERROR = "server_error"
UNAVAILABLE_ERROR = "service_unavailable_error"
RETRY_AFTER_SECONDS = "5"

# Messages quote what was given, and a client may give megabytes.
MAX_MESSAGE_CHARS = 1000
MAX_PARAM_CHARS = 200


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What went wrong; ``param`` is the request field at fault, ``code`` a word for programs."""

    message: str
    type: str
    param: str | None = None
    code: ErrorCode | None = None


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """The body of every reply that is not a success, and the last event of a stream that failed."""

    error: ErrorDetail


class HttpError(MilepostError):
    """A reply with an error status; never leaves the server package."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID_REQUEST,  # noqa: A002 - the protocol's own name for the field
        param: str | None = None,
        code: ErrorCode | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        message, param = _clipped(message, MAX_MESSAGE_CHARS), param and _clipped(param, MAX_PARAM_CHARS)
        super().__init__(message)
        self.status = status
        self.headers = headers or {}
        self.detail = ErrorDetail(message=message, type=type, param=param, code=code)

    @property
    def body(self) -> bytes:
        """The reply's body as JSON."""
        return msgspec.json.encode(ErrorBody(error=self.detail))


def to_http_error(error: Exception) -> HttpError:
    """The reply that an error of the engine, the chat encoding or a bug deserves."""
    match error:
        case HttpError():
            return error
        case RequestTooLargeError():
            return HttpError(400, str(error), param=error.param, code=ErrorCode.CONTEXT_LENGTH_EXCEEDED)
        case RequestError():
            return HttpError(400, str(error), param=error.param, code=ErrorCode.INVALID_VALUE)
        case InputError() if not isinstance(error, CheckpointError | TokenizerError | TraceError):
            # Those are of files of this machine.
            return HttpError(400, without_paths(str(error)), code=ErrorCode.INVALID_VALUE)
        case EngineStoppedError():
            return unavailable(without_paths(str(error)))
        case ExecutionError():
            return HttpError(
                500, without_paths(str(error)), type=SERVER_ERROR, code=ErrorCode.EXECUTION_FAILED
            )
        case RecursionError():
            return HttpError(400, "The body is nested too deeply. Flatten it.", code=ErrorCode.INVALID_JSON)
    return _internal_error()


def _internal_error() -> HttpError:
    # The text of an unforeseen exception may hold anything; it goes to the log, not to a client.
    return HttpError(
        500,
        "The server failed while it handled this request; its log says more. Other requests go on.",
        type=SERVER_ERROR,
        code=ErrorCode.INTERNAL_ERROR,
    )


def _clipped(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}..."


def unavailable(message: str) -> HttpError:
    """503: the server takes no new requests."""
    headers = {"Retry-After": RETRY_AFTER_SECONDS, "Connection": "close"}
    return HttpError(503, message, type=UNAVAILABLE_ERROR, code=ErrorCode.SHUTTING_DOWN, headers=headers)


def error_response(error: HttpError) -> Response:
    """The whole reply."""
    return Response(error.body, error.status, headers=error.headers, media_type="application/json")
