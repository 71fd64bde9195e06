"""Strict reading of a request body: every field is understood, or refused by name.

Clients send fields that ask for nothing: ``n: 1``, ``logit_bias: null``. Such a field, known to OpenAI's
protocol but not served here, is accepted at exactly the values that change nothing, and is an error
that names it at any other.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from milepost.error_text import as_json, nearest
from milepost.server.protocol.error_codes import ErrorCode
from milepost.server.protocol.errors import HttpError

__all__ = ["ANY_LABELS", "ANY_STRING", "HarmlessValues", "read_body"]

T = TypeVar("T", bound=msgspec.Struct)


class _Any(enum.Enum):
    """Stands for many values that have no effect on the reply."""

    STRING = "any string"
    LABELS = "any object of at most 16 strings"


ANY_STRING = _Any.STRING
ANY_LABELS = _Any.LABELS
MAX_LABELS = 16
HarmlessValues = Mapping[str, tuple[object, ...]]

# Far above any tool's schema, far below what recursive code can follow.
MAX_DEPTH = 100

_PATH = re.compile(r" - at `\$\.?(?P<path>.*)`$")
_UNKNOWN = re.compile(r"Object contains unknown field `(?P<name>.*?)`")
_MISSING = re.compile(r"Object missing required field `(?P<name>.*?)`")


def read_body(body: bytes, kind: type[T], harmless: HarmlessValues) -> T:
    """Read a JSON body as `kind`.

    Args:
        body: what the client sent.
        kind: the struct of the fields that are served.
        harmless: fields beside them, each with the values at which it changes nothing; null always is one.

    Raises:
        HttpError: 400 with the field at fault as ``param``.
    """
    content = _read_object(body)
    known = kind.__struct_fields__
    served: dict[str, object] = {}
    for field, value in content.items():
        if field in known:
            if value is not None:  # null is the protocol's way to leave a field out
                served[field] = value
        elif field not in harmless:
            raise _unknown_field(field, (*known, *harmless))
        elif value is not None and not _is_harmless(value, harmless[field]):
            raise _unsupported_value(field, value, harmless[field])
    try:
        return msgspec.convert(served, kind)
    except msgspec.ValidationError as error:
        raise _invalid(str(error)) from None


def _read_object(body: bytes) -> dict[str, Any]:
    try:
        content = msgspec.json.decode(body)
    except msgspec.DecodeError as error:
        raise HttpError(400, f"The body is not valid JSON: {error}.", code=ErrorCode.INVALID_JSON) from None
    except UnicodeDecodeError:
        raise HttpError(400, "The body is not valid UTF-8.", code=ErrorCode.INVALID_JSON) from None
    except RecursionError:
        raise _too_deep() from None
    if not isinstance(content, dict):
        raise HttpError(
            400, f"The body must be a JSON object. Given: {as_json(content)}.", code=ErrorCode.INVALID_TYPE
        )
    if _is_deeper(content, MAX_DEPTH):
        raise _too_deep()
    return content


def _is_deeper(content: object, limit: int) -> bool:
    """Whether arrays and objects are nested in more than `limit` levels."""
    level = [content]
    for _ in range(limit):
        inside = [item.values() if isinstance(item, dict) else item for item in level]
        level = [child for items in inside for child in items if isinstance(child, dict | list)]  # type: ignore[attr-defined]
        if not level:
            return False
    return True


def _too_deep() -> HttpError:
    return HttpError(
        400,
        f"The body must nest at most {MAX_DEPTH} arrays and objects. Flatten it.",
        code=ErrorCode.INVALID_JSON,
    )


def _is_harmless(value: object, allowed: tuple[object, ...]) -> bool:
    if ANY_STRING in allowed and isinstance(value, str):
        return True
    if ANY_LABELS in allowed and isinstance(value, dict):
        return len(value) <= MAX_LABELS and all(isinstance(label, str) for label in value.values())
    # By type too: True == 1 in Python, but not in JSON.
    return any(type(value) is type(item) and value == item for item in allowed)


def _unknown_field(field: str, known: tuple[str, ...]) -> HttpError:
    hint = nearest(field, known) or " Leave it out."
    return HttpError(400, f"Unknown field '{field}'.{hint}", param=field, code=ErrorCode.UNKNOWN_PARAMETER)


def _unsupported_value(field: str, value: object, allowed: tuple[object, ...]) -> HttpError:
    accepted = ["left out", *(item.value if isinstance(item, _Any) else as_json(item) for item in allowed)]
    message = (
        f"'{field}' is not supported by this server; it may only be {' or '.join(accepted)}. "
        f"Given: {as_json(value)}."
    )
    return HttpError(400, message, param=field, code=ErrorCode.UNSUPPORTED_PARAMETER)


def _invalid(message: str) -> HttpError:
    """From msgspec's words to a reply that names the field."""
    found = _PATH.search(message)
    path, what = (found["path"], message[: found.start()]) if found else ("", message)
    if match := _UNKNOWN.fullmatch(what):
        param = f"{path}.{match['name']}".lstrip(".")
        return HttpError(
            400, f"Unknown field '{param}'. Leave it out.", param=param, code=ErrorCode.UNKNOWN_PARAMETER
        )
    if match := _MISSING.fullmatch(what):
        param = f"{path}.{match['name']}".lstrip(".")
        return HttpError(
            400, f"The field '{param}' is missing.", param=param, code=ErrorCode.MISSING_PARAMETER
        )
    what = what[:1].lower() + what[1:]
    return HttpError(400, f"'{path}': {what}.", param=path or None, code=ErrorCode.INVALID_TYPE)
