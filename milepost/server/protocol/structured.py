"""What a client may ask a reply to spell: ``response_format``, and vLLM's names for the same and more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import msgspec

from milepost.chat.encoding import ChatOptions
from milepost.chat.response_format import parse_content_form
from milepost.errors import RequestError
from milepost.grammar import texts
from milepost.server.protocol.error_codes import ErrorCode
from milepost.server.protocol.errors import HttpError
from milepost.types import Grammar

__all__ = ["StructuredFields", "StructuredOutputs", "content_grammar", "grammar_refusals"]

Schema = dict[str, Any] | str


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """vLLM's ``structured_outputs``: one of these."""

    json: Schema | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None


class StructuredFields(msgspec.Struct, frozen=True, kw_only=True):
    """At most one of these may ask for something.

    ``response_format`` is OpenAI's. ``guided_json``, ``guided_regex``, ``guided_choice`` and
    ``guided_grammar`` are vLLM's older names for the members of ``structured_outputs``. A schema may be
    given as JSON text too. A grammar is in llguidance's dialect of Lark.
    """

    response_format: dict[str, Any] | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None

    def constraint(self) -> str | None:
        """The name of the field that constrains the reply; None when none does.

        Raises:
            RequestError: several do.
        """
        given = [name for name, _, _ in self._guided()]
        if self.response_format is not None and self.response_format.get("type") != "text":
            given.insert(0, "response_format")
        if len(given) > 1:
            raise RequestError(
                f"A reply can be constrained in one way only. Given: {' and '.join(given)}. "
                "Leave out all but one.",
                param=given[1],
            )
        return given[0] if given else None

    def guided(self) -> Grammar | None:
        """The grammar that a field other than ``response_format`` asks for.

        Raises:
            HttpError: 400 ``invalid_grammar``: it can't be written.
        """
        for param, kind, value in self._guided():
            with grammar_refusals(param):
                return _grammar(kind, value)
        return None

    def _guided(self) -> Iterator[tuple[str, str, Any]]:
        """(field, kind, value) of each field that asks for something."""
        for kind in ("json", "regex", "choice", "grammar"):
            value = getattr(self, f"guided_{kind}")
            if value is not None:
                yield f"guided_{kind}", kind, value
        if self.structured_outputs is not None:
            for kind in StructuredOutputs.__struct_fields__:
                value = getattr(self.structured_outputs, kind)
                if value is not None and value is not False:
                    yield f"structured_outputs.{kind}", kind, value


@contextmanager
def grammar_refusals(param: str | None) -> Iterator[None]:
    """Let a `RequestError` of a grammar be the refusal of the field that asked for it."""
    try:
        yield
    except RequestError as error:
        param = param or error.param
        message = str(error) if param is None else f"{param}: {error}"
        raise HttpError(400, message, param=param, code=ErrorCode.INVALID_GRAMMAR) from None


def content_grammar(asked: StructuredFields) -> Grammar | None:
    """What the text of a completion may spell, by whichever field says it; None when none does.

    Raises:
        HttpError: 400 ``invalid_grammar``: it can't be written.
        RequestError: ``response_format`` is none.
    """
    form = parse_content_form(ChatOptions(response_format=asked.response_format))
    return form.grammar or asked.guided()


def _grammar(kind: str, value: Any) -> Grammar:  # noqa: ANN401 - as the field of that kind holds it
    match kind:
        case "json":
            return texts.json_schema(_schema(value))
        case "json_object":
            return texts.json_object()
        case "regex":
            return texts.regex(value)
        case "choice":
            return texts.choice(value)
        case _:
            return texts.lark(value)


def _schema(given: Schema) -> Mapping[str, Any]:
    if not isinstance(given, str):
        return given
    try:
        schema = json.loads(given)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"A JSON schema that is given as text must be JSON: {error}.") from None
    if not isinstance(schema, Mapping):
        raise RequestError(f"A JSON schema must be an object. Given: {given!r:.60}.")
    return schema
