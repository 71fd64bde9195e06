"""What a template can do to values: the filters and functions that templates of chat models use, bounded."""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jinja2 import TemplateError, Undefined, filters
from jinja2.utils import Namespace

from milepost.chat.templates.limits import (
    MAX_ITEMS,
    TemplateLimitError,
    as_text,
    check_built,
    check_format,
    check_formatted,
    check_lines,
    check_number,
    check_size,
    joined,
    meter,
)

__all__ = [
    "BINARY_OPERATIONS",
    "STRING_METHODS",
    "TemplateRefusal",
    "call_string_method",
    "filters_of",
    "globals_of",
    "listed",
]

# Filters that make nothing larger than what they are given, unless it is a text that they take apart.
_SAFE_FILTERS = (
    *("abs", "capitalize", "count", "d", "default", "dictsort", "first", "float", "groupby", "int", "items"),
    *("last", "length", "lower", "map", "max", "min", "reject", "rejectattr", "reverse", "safe", "select"),
    *("selectattr", "sort", "title", "trim", "truncate", "unique", "upper", "wordcount"),
)
_TAKE_APART = frozenset(
    (
        *("dictsort", "groupby", "map", "max", "min", "reject", "rejectattr", "select", "selectattr", "sort"),
        *("title", "unique", "wordcount"),
    )
)
STRING_METHODS = frozenset(
    (
        *("capitalize", "casefold", "count", "endswith", "find", "format", "index", "isalnum", "isalpha"),
        *("isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join"),
        *("lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex"),
        *("rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase"),
        *("title", "upper"),
    )
)
MAX_INDENT = 64
MAX_ROUND_DIGITS = 32

_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&#34;", "'": "&#39;"})
_TIME_FORMAT = re.compile(r"(?:[^%]|%-?[A-Za-z%])*\Z")


class TemplateRefusal(TemplateError):  # noqa: N818  # no fault of the template: it refuses the conversation
    """A template's own ``raise_exception``."""


def filters_of(defaults: Mapping[str, Callable[..., Any]]) -> dict[str, Callable[..., Any]]:
    """The filters that a template may use, from Jinja's own `defaults`."""
    safe = {name: defaults[name] for name in _SAFE_FILTERS}
    return (
        safe
        | {name: _of_bounded_text(safe[name]) for name in _TAKE_APART}
        | {
            "e": _escape,
            "escape": _escape,
            "format": _format,
            "indent": _indent,
            "join": _join,
            "list": listed,
            "replace": _replace,
            "round": _round,
            "string": as_text,
            "sum": _sum,
            "tojson": _tojson,
        }
    )


def globals_of(safe_range: Callable[..., range]) -> dict[str, Any]:
    """The functions that a template may call by name."""
    return {
        "range": safe_range,
        "dict": _dict,
        "namespace": _Namespace,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }


def call_string_method(method: Callable[..., Any], *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
    """Call a method of a text that could make it larger, or many of it."""
    text, name = getattr(method, "__self__", ""), getattr(method, "__name__", "")
    if name == "replace":
        return _replace(text, *arguments, **named)
    if name == "join":
        return _join(arguments[0] if arguments else (), text)
    if name in ("split", "rsplit"):
        return _split(method, *arguments, **named)
    if name == "splitlines":
        check_lines(text)
    result = method(*arguments, **named)
    if isinstance(result, str):
        return meter().write(result)
    if isinstance(result, list) and len(result) > MAX_ITEMS:
        raise TemplateLimitError(f"it made a list of more than {MAX_ITEMS:,} items")
    return result


class _Namespace(Namespace):
    """Jinja's, which may hold what it likes, itself too, for it is never written out."""

    def __repr__(self) -> str:
        return "<Namespace>"


def _dict(*pairs: Any, **named: Any) -> Any:  # noqa: ANN401  # whatever a template holds
    return check_built(dict(*pairs, **named))


def _of_bounded_text(known: Callable[..., Any]) -> Callable[..., Any]:
    """A filter of Jinja's that takes no long text apart: each piece of it is an object of its own."""
    place = 1 if hasattr(known, "jinja_pass_arg") else 0  # what it filters, behind the environment

    @functools.wraps(known)
    def bounded(*arguments: Any, **named: Any) -> Any:  # noqa: ANN401  # whatever a template holds
        for text in arguments[place : place + 1]:
            if isinstance(text, str) and len(text) > MAX_ITEMS:
                raise TemplateLimitError(f"it took a text of more than {MAX_ITEMS:,} characters apart")
        return known(*arguments, **named)

    return bounded


def _split(method: Callable[..., list[str]], sep: str | None = None, maxsplit: int = -1) -> list[str]:
    found = method(sep, MAX_ITEMS if maxsplit < 0 else min(maxsplit, MAX_ITEMS))
    if len(found) > MAX_ITEMS:
        raise TemplateLimitError(f"it made a list of more than {MAX_ITEMS:,} items")
    return found


def _raise_exception(message: object = "") -> None:
    raise TemplateRefusal(as_text(message)[:500])


def _strftime_now(pattern: object) -> str:
    if not isinstance(pattern, str) or len(pattern) > MAX_INDENT or not _TIME_FORMAT.match(pattern):
        raise TemplateLimitError("strftime_now takes a short format of plain directives")
    return datetime.datetime.now().astimezone().strftime(pattern)


def _escape(value: object) -> str:
    return meter().write(as_text(value).translate(_HTML))


def _format(value: object, *arguments: object, **named: object) -> str:
    return _percent(as_text(value), named or arguments)


def _percent(text: str, arguments: Mapping[str, object] | tuple[object, ...]) -> str:
    check_format(text)
    given = arguments.values() if isinstance(arguments, Mapping) else arguments
    check_formatted(text, text.count("%"), (arguments, *given))
    return meter().write(text % arguments)


def _indent(value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> str:
    space = width if isinstance(width, str) else " " * min(width, MAX_INDENT + 1)
    if len(space) > MAX_INDENT:
        raise TemplateLimitError(f"it indents by more than {MAX_INDENT} characters")
    text = as_text(value)
    check_lines(text)
    check_size(len(text) + len(space) * (len(text.splitlines()) + 1))
    return meter().write(filters.do_indent(text, space, first, blank))


def _join(value: Iterable[Any], d: object = "", attribute: str | int | None = None) -> str:
    between = as_text(d)
    parts = value if attribute is None else (_item(part, attribute) for part in value)
    pieces: list[str] = []
    for part in parts:
        pieces.extend((between, as_text(part)) if pieces else (as_text(part),))
        if len(pieces) > 2 * MAX_ITEMS:
            raise TemplateLimitError(f"it joined more than {MAX_ITEMS:,} items")
    return joined(pieces)


def _item(value: Any, attribute: str | int) -> Any:  # noqa: ANN401  # whatever a template holds
    try:
        return value[attribute]
    except (TypeError, LookupError, AttributeError):
        return Undefined(name=str(attribute))


def listed(value: Iterable[Any]) -> list[Any]:
    """A list of what a template goes through.

    Raises:
        TemplateLimitError: it is too long, or too large written out.
    """
    made: list[Any] = []
    for part in value:
        made.append(part)
        if len(made) > MAX_ITEMS:
            raise TemplateLimitError(f"it made a list of more than {MAX_ITEMS:,} items")
    check_built(made)
    return made


def _replace(value: object, old: object, new: object, count: int | None = -1) -> str:
    text, before, after = as_text(value), as_text(old), as_text(new)
    found = text.count(before)
    check_size(len(text) + found * max(len(after) - len(before), 0))
    return meter().write(text.replace(before, after, -1 if count is None else count))


def _round(value: float, precision: int = 0, method: str = "common") -> float:
    if not -MAX_ROUND_DIGITS <= precision <= MAX_ROUND_DIGITS:
        raise TemplateLimitError(f"it rounds to more than {MAX_ROUND_DIGITS} digits")
    return filters.do_round(value, precision, method)  # type: ignore[arg-type]  # checked there


def _sum(value: Iterable[Any], attribute: str | int | None = None, start: Any = 0) -> Any:  # noqa: ANN401
    parts = value if attribute is None else (_item(part, attribute) for part in value)
    total = start
    for part in parts:
        total = _add(total, part)
    return total


def _tojson(
    value: Any,  # noqa: ANN401  # whatever a template holds
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As the templates' own renderer has it, not as Jinja's for HTML."""
    if indent is not None and not 0 <= indent <= MAX_INDENT:
        raise TemplateLimitError(f"it indents by more than {MAX_INDENT} characters")
    if separators is not None and max(len(as_text(part)) for part in separators) > MAX_INDENT:
        raise TemplateLimitError(f"it separates by more than {MAX_INDENT} characters")
    check_built(value, indent or 0)
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    mark = meter().mark
    return meter().write(text.replace(json.dumps(mark)[1:-1], mark) if mark and ensure_ascii else text)


def _add(left: Any, right: Any) -> Any:  # noqa: ANN401  # whatever a template holds
    if isinstance(left, str) and isinstance(right, str):
        check_size(len(left) + len(right))
        return meter().write(left + right)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        if len(left) + len(right) > MAX_ITEMS:
            raise TemplateLimitError(f"it made a list of more than {MAX_ITEMS:,} items")
        return check_built(left + right)  # type: ignore[operator]  # a list and a tuple raise, as they should
    _check_bits(left, right)
    return left + right


def _multiply(left: Any, right: Any) -> Any:  # noqa: ANN401  # whatever a template holds
    for many, times in ((left, right), (right, left)):
        if isinstance(many, str | list | tuple) and isinstance(times, int):
            check_size(len(many) * times if isinstance(many, str) else 0)
            if not isinstance(many, str) and len(many) * times > MAX_ITEMS:
                raise TemplateLimitError(f"it made a list of more than {MAX_ITEMS:,} items")
            made = many * times
            return meter().write(made) if isinstance(made, str) else check_built(made)
    _check_bits(left, right)
    return left * right


def _modulo(left: Any, right: Any) -> Any:  # noqa: ANN401  # whatever a template holds
    if isinstance(left, str):
        return _percent(as_text(left), right if isinstance(right, tuple | Mapping) else (right,))
    return left % right


def _power(left: Any, right: Any) -> Any:  # noqa: ANN401  # whatever a template holds
    if isinstance(left, int) and isinstance(right, int):
        check_number(left.bit_length() * abs(right))
    return left**right


def _check_bits(*numbers: object) -> None:
    check_number(sum(number.bit_length() for number in numbers if isinstance(number, int)))


BINARY_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": _add,
    "*": _multiply,
    "%": _modulo,
    "**": _power,
}
