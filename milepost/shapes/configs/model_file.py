"""What a family's reader gets of a config.json, and the fields that all families have."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import msgspec

from milepost.error_text import as_json
from milepost.json_fields import JsonFields
from milepost.shapes.configs.stored_bytes import StoredBytes
from milepost.shapes.shape import ExpertsShape

__all__ = [
    "MAX_LAYERS",
    "MAX_SIZE",
    "ModelFile",
    "check_top_k",
    "experts_of",
    "gated",
    "layer_count",
    "layer_kinds",
    "size",
]

MAX_SIZE = 2**31 - 1
"""No width, count or length of a model is larger; a larger one is a mistake in the file."""
MAX_LAYERS = 10_000


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


def experts_of(
    file: ModelFile,
    layers: Sequence[int],
    experts: ExpertsShape,
    *,
    routed: Mapping[str, int],
    shared: Mapping[str, int],
) -> ExpertsShape | None:
    """Experts with the bytes that they are stored in; None without layers that have any.

    Args:
        file: the config.json.
        layers: numbers of the layers with experts.
        experts: in bf16.
        routed: parameters of one routed expert's matrices by their names in a layer.
        shared: the same of the shared experts.
    """
    if not layers:
        return None
    return msgspec.structs.replace(
        experts,
        bytes_per_parameter=file.stored.mean(layers, routed, experts.expert_parameters),
        shared_bytes_per_parameter=file.stored.mean(layers, shared, experts.shared_parameters),
    )


def gated(place: str, width: int, intermediate: int) -> dict[str, int]:
    """Parameters of a gated feed-forward network's matrices by their usual names.

    Args:
        place: where it stands in a layer, such as ``mlp``.
        width: of its input and output.
        intermediate: inside.
    """
    return {f"{place}.{name}": width * intermediate for name in ("gate_proj", "up_proj", "down_proj")}


def check_top_k(text: JsonFields, top_k: int, experts: int, name: str) -> None:
    """Note a problem when a token takes more experts than there are."""
    if top_k > experts:
        text.problem(name, f"must be at most the {experts} experts. Given: {top_k}")
