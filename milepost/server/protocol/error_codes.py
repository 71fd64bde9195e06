"""The words that programs tell errors apart by: ``error.code`` of every reply that is not a success."""

from __future__ import annotations

import enum

__all__ = ["ErrorCode"]


class ErrorCode(enum.StrEnum):
    """Every ``code`` that the server sends; a word keeps its meaning for as long as the server exists."""

    INVALID_HTTP = "invalid_http"  # 400: what came is no HTTP
    INVALID_JSON = "invalid_json"  # 400: the body is no JSON, or nested too deep
    INVALID_TYPE = "invalid_type"  # 400: a field is of another type
    INVALID_VALUE = "invalid_value"  # 400: a field is out of its range, or fields don't go together
    INVALID_GRAMMAR = "invalid_grammar"  # 400: a schema, expression or grammar that can't be compiled
    UNKNOWN_PARAMETER = "unknown_parameter"  # 400: no such field
    UNSUPPORTED_PARAMETER = "unsupported_parameter"  # 400: a known field at a value that is not served
    MISSING_PARAMETER = "missing_parameter"  # 400: a field that must be given
    CONTEXT_LENGTH_EXCEEDED = "context_length_exceeded"  # 400: the prompt can never fit
    INVALID_API_KEY = "invalid_api_key"  # 401: no key, or one that is not known
    OPERATOR_ONLY = "operator_only"  # 403: the path is for those who run the server
    MODEL_NOT_FOUND = "model_not_found"  # 404: another model than the one that is served
    NOT_FOUND = "not_found"  # 404: no such path
    METHOD_NOT_ALLOWED = "method_not_allowed"  # 405: the path takes other methods
    HEAD_TIMEOUT = "head_timeout"  # 408: the head of the request came too slowly
    BODY_TIMEOUT = "body_timeout"  # 408: the body came too slowly
    BODY_TOO_LARGE = "body_too_large"  # 413: more bytes than the server's limit
    UNSUPPORTED_MEDIA_TYPE = "unsupported_media_type"  # 415: the body is not said to be JSON
    HOST_NOT_ALLOWED = "host_not_allowed"  # 421: the server is not meant to be called by this name
    RATE_LIMIT_EXCEEDED = "rate_limit_exceeded"  # 429: the key's limit of requests or tokens
    QUEUE_FULL = "queue_full"  # 429: enough requests wait already
    HEADERS_TOO_LARGE = "headers_too_large"  # 431: more bytes of headers than the server's limit
    EXECUTION_FAILED = "execution_failed"  # 500: this request failed while it ran
    INTERNAL_ERROR = "internal_error"  # 500: a bug; the log says more
    TOO_MANY_CONNECTIONS = "too_many_connections"  # 503: as many as the server allows are open
    SHUTTING_DOWN = "shutting_down"  # 503: nothing new is taken, here at least
    DEADLINE_EXCEEDED = "deadline_exceeded"  # 504: the request's time was over
