"""The replies of those who are turned away: who they are, how much they ask for, how long they take."""

from __future__ import annotations

import math

from milepost.server.protocol.error_codes import ErrorCode
from milepost.server.protocol.errors import HttpError

__all__ = [
    "MAX_RETRY_SECONDS",
    "body_too_large",
    "body_too_slow",
    "deadline_exceeded",
    "forbidden",
    "host_refused",
    "too_many",
    "unauthorized",
]

AUTHENTICATION_ERROR = "authentication_error"
PERMISSION_ERROR = "permission_error"
RATE_LIMIT_ERROR = "rate_limit_error"
TIMEOUT_ERROR = "timeout_error"

MAX_RETRY_SECONDS = 300
_CLOSE = {"Connection": "close"}


def unauthorized(message: str, *, for_people: bool) -> HttpError:
    """401 with OpenAI's code; `for_people` lets a browser ask for the key, as a password."""
    challenge = 'Bearer realm="milepost"'
    if for_people:
        challenge = f'Basic realm="milepost", charset="UTF-8", {challenge}'
    return HttpError(
        401,
        message,
        type=AUTHENTICATION_ERROR,
        code=ErrorCode.INVALID_API_KEY,
        headers={"WWW-Authenticate": challenge},
    )


def forbidden() -> HttpError:
    """403: a tenant's key where an operator's is needed."""
    return HttpError(
        403,
        "This path is for those who run the server: it needs the API key of a tenant with operator = true. "
        "What is for clients is under /v1/.",
        type=PERMISSION_ERROR,
        code=ErrorCode.OPERATOR_ONLY,
    )


def host_refused(host: str) -> HttpError:
    """421: a page of another site whose name was made to mean this machine, or a proxy that nobody named."""
    return HttpError(
        421,
        f"This server answers at localhost and at addresses. Given: the host {host!r:.100}. "
        "Behind a proxy, start it with --api-keys or with --allowed-host.",
        code=ErrorCode.HOST_NOT_ALLOWED,
    )


def too_many(message: str, code: ErrorCode, retry_after: float) -> HttpError:
    """429: later it may go; `retry_after` is an estimate in seconds."""
    seconds = max(1, min(MAX_RETRY_SECONDS, math.ceil(retry_after)))
    return HttpError(
        429,
        f"{message} Try again in {seconds} s.",
        type=RATE_LIMIT_ERROR,
        code=code,
        headers={"Retry-After": str(seconds)},
    )


def body_too_large(limit: int) -> HttpError:
    """413."""
    return HttpError(
        413,
        f"The body must be at most {limit} bytes. Send a shorter prompt.",
        code=ErrorCode.BODY_TOO_LARGE,
        headers=_CLOSE.copy(),
    )


def body_too_slow(seconds: float, bytes_per_second: int) -> HttpError:
    """408."""
    return HttpError(
        408,
        f"The body must come within {seconds:g} s and at {bytes_per_second} bytes a second. It did not.",
        type=TIMEOUT_ERROR,
        code=ErrorCode.BODY_TIMEOUT,
        headers=_CLOSE.copy(),
    )


def deadline_exceeded(seconds: float) -> HttpError:
    """504: the request was aborted."""
    return HttpError(
        504,
        f"The request was not done within {seconds:g} s and was aborted. "
        "Ask for fewer tokens, or for more time.",
        type=TIMEOUT_ERROR,
        code=ErrorCode.DEADLINE_EXCEEDED,
    )
