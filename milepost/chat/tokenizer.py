"""The tokenizer that the rest of Milepost sees, and the JSON file that lies beside each format's own.

`Tokenizer.encode` never yields a special token, even for text that spells one: markers enter a
prompt only by id, from `Tokenizer.special`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from milepost.errors import TokenizerError

__all__ = ["CONFIG_FILE", "Tokenizer", "chat_defaults", "read_json_object", "read_tokenizer_config"]

CONFIG_FILE = "tokenizer_config.json"


class Tokenizer(Protocol):
    """Text to token ids and back."""

    @property
    def vocab_size(self) -> int:
        """One more than the highest id that the tokenizer knows."""
        ...

    @property
    def chat_defaults(self) -> Mapping[str, object]:
        """``default_chat_template_kwargs`` of tokenizer_config.json; empty when there are none."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as ordinary text: no special token, whatever the text spells."""
        ...

    def special(self, name: str) -> int:
        """Id of the special token `name`, such as ``<|open|>``.

        Raises:
            TokenizerError: the tokenizer has no such token.
        """
        ...

    def special_name(self, token_id: int) -> str | None:
        """Name of a special token; None for an ordinary one or an unknown id."""
        ...

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of an ordinary token; empty for a special token or an unknown id."""
        ...

    def decode(self, token_ids: Sequence[int]) -> str:
        """Text of ordinary tokens, special ones left out; torn UTF-8 becomes U+FFFD."""
        ...


def read_tokenizer_config(folder: Path, *, required: bool) -> dict[str, object]:
    """Read ``tokenizer_config.json``; an absent one is ``{}`` unless `required`.

    Raises:
        TokenizerError: the file is missing though required, or is not a JSON object.
    """
    path = folder / CONFIG_FILE
    if not path.exists() and not required:
        return {}
    return read_json_object(path)


def read_json_object(path: Path) -> dict[str, object]:
    """Read a file that holds one JSON object.

    Raises:
        TokenizerError: it can't be read or holds something else.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise TokenizerError(
            f"{path} is missing. Copy the tokenizer files that were published with this checkpoint."
        ) from None
    except OSError as error:
        raise TokenizerError(
            f"{path} can't be read: {error.strerror}. Check the file's permissions."
        ) from error
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path} is torn or not JSON ({error}). Copy or download it again.") from error
    if not isinstance(content, dict):
        raise TokenizerError(
            f"{path} must hold a JSON object, not a {type(content).__name__}. Copy it again."
        )
    return content


def chat_defaults(config: Mapping[str, object]) -> Mapping[str, object]:
    """``default_chat_template_kwargs`` of a tokenizer_config.json.

    Raises:
        TokenizerError: it is there but not an object.
    """
    defaults = config.get("default_chat_template_kwargs", {})
    if not isinstance(defaults, dict):
        raise TokenizerError(
            f"{CONFIG_FILE}: default_chat_template_kwargs must be an object. Given: {defaults!r}."
        )
    return defaults
