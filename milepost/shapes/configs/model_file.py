"""What a family's reader gets of a config.json, and the fields that all families have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from milepost.error_text import as_json
from milepost.json_fields import JsonFields
from milepost.shapes.configs.stored_bytes import StoredBytes

__all__ = ["MAX_LAYERS", "MAX_SIZE", "ModelFile", "check_multiple", "layer_count", "layer_kinds", "size"]

MAX_SIZE = 2**31 - 1
"""No width, count or length of a model is larger; a larger one is a mistake in the file."""
MAX_LAYERS = 1_000


@dataclasses.dataclass(frozen=True)
class ModelFile:
    """A config.json, taken apart.

    Attributes:
        family: its model_type.
        text: fields of the language model: the file itself, or its ``text_config``.
        top: fields of the file.
        stored: bytes a parameter.
    """

    family: str
    text: JsonFields
    top: JsonFields
    stored: StoredBytes

    @property
    def tied_embeddings(self) -> bool:
        """Whether the output head is the embedding table; in a file of two levels the outer one decides."""
        inner = self.text.boolean("tie_word_embeddings", default=False)
        return self.top.boolean("tie_word_embeddings", default=inner)


def size(fields: JsonFields, *names: str, minimum: int = 1, default: int | None = None) -> int:
    """A width, a count or a length that sizes depend on."""
    return fields.integer(*names, minimum=minimum, maximum=MAX_SIZE, default=default)


def layer_count(text: JsonFields) -> int:
    """``num_hidden_layers``."""
    return text.integer("num_hidden_layers", maximum=MAX_LAYERS)


def layer_kinds(text: JsonFields, name: str, known: Mapping[str, str]) -> list[str] | None:
    """The kind of every layer from a list of words, None when the list is not there.

    Args:
        text: where the list is.
        name: of the list.
        known: the words, and what each stands for.
    """
    words = text.optional(name)
    if words is None:
        return None
    if not isinstance(words, list) or not words or len(words) > MAX_LAYERS:
        text.problem(name, f"must be a list of 1 to {MAX_LAYERS} layer kinds. Given: {as_json(words)}")
        return []
    unknown = [word for word in words if not isinstance(word, str) or word not in known]
    if unknown:
        text.problem(name, f"holds {as_json(unknown[0])}; known kinds are {', '.join(known)}")
        return []
    return [known[word] for word in words]


def check_multiple(text: JsonFields, name: str, base: str) -> None:
    """Note a problem when one number is no multiple of another; numbers that are wrong anyway are let be."""
    given, unit = text.optional(name), text.optional(base)
    if type(given) is int and type(unit) is int and given > 0 and unit > 0 and given % unit:
        text.problem(name, f"must be a multiple of {base} ({unit}). Given: {given}")
