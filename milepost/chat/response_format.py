"""What form a reply's content must have: OpenAI's ``response_format``, or a grammar of the caller's own.

Every error is a `RequestError` whose ``param`` is the path of the field at fault.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from milepost.chat.encoding import ChatOptions
from milepost.errors import RequestError
from milepost.grammar import texts
from milepost.types import Grammar

__all__ = ["ContentForm", "parse_content_form"]

KINDS = ("text", "json_object", "json_schema")
SCHEMA_FIELDS = ("description", "name", "schema", "strict")
MAX_NAME_CHARS = 64

_NAME = re.compile(r"[A-Za-z0-9_-]+\Z")


class ContentForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form of a reply's content.

    Attributes:
        kind: "text", "json_object" or "json_schema".
        schema: the JSON Schema of the last one; None when any object will do.
        grammar: what the content may spell; None for free text.
    """

    kind: str = "text"
    schema: Mapping[str, Any] | None = None
    grammar: Grammar | None = None


def parse_content_form(options: ChatOptions) -> ContentForm:
    """Check ``response_format`` and ``content_grammar``.

    A ``json_schema`` holds whether or not it is ``strict``: that a reply keeps to it costs nothing more.

    Raises:
        RequestError: the first thing that is wrong, with its path.
    """
    given = options.response_format
    kind = _kind(given)
    if options.content_grammar is not None and kind != "text":
        raise _error("response_format", f"is {kind}, and there is a grammar too. Give one of the two.")
    if given is None or kind == "text":
        return ContentForm(grammar=options.content_grammar)
    if kind == "json_object":
        return ContentForm(kind=kind, grammar=texts.json_object())
    schema = _parse_schema(given.get("json_schema"))
    if schema is None:
        return ContentForm(kind=kind, grammar=texts.json_object())
    try:
        return ContentForm(kind=kind, schema=schema, grammar=texts.json_schema(schema))
    except RequestError as error:
        raise _error("response_format.json_schema.schema", f"can't be used: {error}") from None


def _kind(given: Mapping[str, Any] | None) -> str:
    if given is None:
        return "text"
    if not isinstance(given, Mapping):
        raise _error("response_format", f"must be an object with a type. Given: {given!r:.60}.")
    kind = given.get("type")
    if kind not in KINDS:
        raise _error("response_format.type", f"must be one of {', '.join(KINDS)}. Given: {kind!r:.60}.")
    _refuse_unknown(given, ("type", "json_schema") if kind == "json_schema" else ("type",), "response_format")
    return str(kind)


def _parse_schema(given: object) -> Mapping[str, Any] | None:
    path = "response_format.json_schema"
    if not isinstance(given, Mapping):
        raise _error(path, f"must be an object with a name and a schema. Given: {given!r:.60}.")
    _refuse_unknown(given, SCHEMA_FIELDS, path)
    name, description = given.get("name"), given.get("description")
    if not isinstance(name, str) or not _NAME.match(name) or len(name) > MAX_NAME_CHARS:
        raise _error(
            f"{path}.name",
            f"must be at most {MAX_NAME_CHARS} letters, digits, underscores or dashes. Given: {name!r:.80}.",
        )
    if description is not None and not isinstance(description, str):
        raise _error(f"{path}.description", f"must be a string. Given: {description!r:.60}.")
    if not isinstance(given.get("strict"), bool | None):
        raise _error(f"{path}.strict", f"must be true or false. Given: {given['strict']!r:.60}.")
    schema = given.get("schema")
    if schema is not None and not isinstance(schema, Mapping):
        raise _error(f"{path}.schema", f"must be a JSON Schema object. Given: {schema!r:.60}.")
    return schema


def _refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...], path: str) -> None:
    for field, value in given.items():
        if field not in known and value is not None:
            raise _error(f"{path}.{field}", f"is not supported here; known are {', '.join(known)}.")


def _error(path: str, what: str) -> RequestError:
    return RequestError(f"{path} {what}", param=path)
