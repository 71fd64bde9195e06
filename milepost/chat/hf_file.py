"""Hugging Face's ``tokenizer.json``, for byte-level BPE.

The file's added tokens are taken out before the `tokenizers` library sees it, and kept in a table
of our own: the library would otherwise find them in user text. It is told of no post-processor,
so that it adds nothing either.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Library

from milepost.chat.text_pieces import without_surrogates
from milepost.chat.token_table import TokenTable
from milepost.chat.tokenizer import chat_defaults, read_json_object
from milepost.errors import TokenizerError

__all__ = ["HfTokenizer", "read_hf"]


class HfTokenizer(TokenTable):
    """A `milepost.chat.tokenizer.Tokenizer` over byte-level BPE; built by `read_hf`."""

    def __init__(
        self,
        library: Library,
        pieces: Mapping[int, bytes],
        specials: Mapping[str, int],
        chat_defaults: Mapping[str, object],
    ) -> None:
        super().__init__(pieces, specials, chat_defaults, specials_file="tokenizer.json")
        self._library = library

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as ordinary text."""
        return list(self._library.encode(without_surrogates(text), add_special_tokens=False).ids)


def read_hf(path: Path, config: Mapping[str, object]) -> HfTokenizer:
    """Read ``tokenizer.json``.

    Args:
        path: the file.
        config: the contents of tokenizer_config.json, or nothing.

    Raises:
        TokenizerError: the file is torn or is not byte-level BPE.
    """
    content: dict[str, Any] = read_json_object(path)
    model = content.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE" or model.get("byte_fallback"):
        found = model.get("type") if isinstance(model, dict) else None
        raise TokenizerError(
            f"{path} must be byte-level BPE; found model type {found!r}. "
            "Milepost serves Kimi models, whose tokenizers are byte-level BPE."
        )
    specials = _read_added(path, content)
    vocab = {piece: token_id for piece, token_id in _read_vocab(path, model) if piece not in specials}
    pieces = {token_id: _piece_bytes(path, piece) for piece, token_id in vocab.items()}
    if not pieces:
        raise TokenizerError(f"{path} has an empty vocabulary. Copy or download it again.")
    # A vocabulary may list the added tokens too; without them no merge can end in one.
    content |= {"added_tokens": [], "post_processor": None, "truncation": None, "padding": None}
    content["model"] = model | {"vocab": vocab}
    try:
        library = Library.from_str(json.dumps(content))
    except Exception as error:  # the library raises bare Exception for whatever it can't read
        raise TokenizerError(f"{path} can't be read: {error}. Copy or download it again.") from error
    return HfTokenizer(library, pieces, specials, chat_defaults(config))


def _read_added(path: Path, content: Mapping[str, Any]) -> dict[str, int]:
    added: dict[str, int] = {}
    entries = content.get("added_tokens") or []
    if not isinstance(entries, list):
        raise TokenizerError(f"{path}: added_tokens must be a list. Given: {entries!r:.60}.")
    for entry in entries:
        try:
            added[str(entry["content"])] = int(entry["id"])
        except (TypeError, KeyError, ValueError, OverflowError):
            raise TokenizerError(
                f'{path}: added_tokens must hold objects with "id" and "content". Given: {entry!r:.60}.'
            ) from None
    return added


def _read_vocab(path: Path, model: Mapping[str, Any]) -> list[tuple[str, int]]:
    vocab = model.get("vocab")
    if not isinstance(vocab, dict) or not all(isinstance(value, int) for value in vocab.values()):
        raise TokenizerError(f"{path}: model.vocab must map pieces to ids. Copy or download it again.")
    return list(vocab.items())


def _piece_bytes(path: Path, piece: str) -> bytes:
    try:
        return bytes(_BYTE_OF_CHAR[char] for char in piece)
    except KeyError:
        raise TokenizerError(
            f"{path}: the piece {piece!r} is not spelled in byte-level BPE's alphabet. "
            "Milepost serves Kimi models, whose tokenizers are byte-level BPE."
        ) from None


def _byte_alphabet() -> dict[str, int]:
    """Byte-level BPE's spelling: printable Latin-1 stands for itself, the rest for U+0100 onwards."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    return alphabet | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF_CHAR = _byte_alphabet()
