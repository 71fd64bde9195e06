"""The words that programs tell errors apart by: ``error.code`` of every reply that is not a success."""

from __future__ import annotations

import enum

__all__ = ["ErrorCode"]


class ErrorCode(enum.StrEnum):
    """Every ``code`` that the server sends; a word keeps its meaning for as long as the server exists."""

    INVALID_JSON = "invalid_json"  # 400: the body is no JSON, or nested too deep
    INVALID_TYPE = "invalid_type"  # 400: a field is of another type
    INVALID_VALUE = "invalid_value"  # 400: a field is out of its range, or fields don't go together
    INVALID_GRAMMAR = "invalid_grammar"  # 400: a schema, expression or grammar that can't be compiled
    UNKNOWN_PARAMETER = "unknown_parameter"  # 400: no such field
    UNSUPPORTED_PARAMETER = "unsupported_parameter"  # 400: a known field at a value that is not served
    MISSING_PARAMETER = "missing_parameter"  # 400: a field that must be given
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  # 400: the prompt can never fit
    INVALID_API_KEY = "invalid_api_key"  # 401: no key, or one that is not known
    MODEL_NOT_FOUND = "model_not_found"  # 404: another model than the one that is served
    NOT_FOUND = "not_found"  # 404: no such path
    METHOD_NOT_ALLOWED = "method_not_allowed"  # 405: the path takes other methods
    BODY_TOO_LARGE = "body_too_large"  # 413: more bytes than the server's limit
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"  # 415: the body is not said to be JSON
    EXECUTION_FAILED = "execution_failed"  # 500: this request failed while it ran
    INTERNAL_ERROR = "internal_error"  # 500: a bug; the log says more
    SHUTTING_DOWN = "shutting_down"  # 503: nothing new is taken, here at least
