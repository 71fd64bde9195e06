"""A tokenizer in the form that load generators read, which make prompts of so many tokens themselves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from milepost.chat.tiktoken_file import SPLIT_PATTERN
from milepost.chat.tokenizer import Tokenizer as ChatTokenizer
from milepost.chat.tokenizer_folder import load_tokenizer

__all__ = ["write_tokenizer"]

_BYTES = 256


def write_tokenizer(checkpoint: Path, folder: Path) -> Path:
    """Write ``tokenizer.json`` of a checkpoint whose own is a ``tiktoken.model``; returns the folder.

    The same text has the same ids in either form.
    """
    tokenizer = load_tokenizer(checkpoint)
    pieces = _ordinary_pieces(tokenizer)
    names = {piece: "".join(map(_byte_names().__getitem__, piece)) for piece in pieces}
    merges = [(names[left], names[right]) for left, right in _merges(pieces)]
    form = Tokenizer(models.BPE({names[piece]: rank for piece, rank in pieces.items()}, merges))
    form.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    form.decoder = decoders.ByteLevel()
    folder.mkdir(parents=True, exist_ok=True)
    form.save(str(folder / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 8192}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def _ordinary_pieces(tokenizer: ChatTokenizer) -> dict[bytes, int]:
    """Bytes of each token that isn't special -> its id, which is its rank."""
    ids = range(tokenizer.vocab_size)
    return {tokenizer.token_bytes(i): i for i in ids if tokenizer.special_name(i) is None}


def _merges(ranks: Mapping[bytes, int]) -> list[tuple[bytes, bytes]]:
    """For each piece of several bytes, by rank, the two that it is merged of."""
    merges = []
    for piece, rank in sorted(ranks.items(), key=lambda pair: pair[1]):
        if len(piece) > 1:
            left, right = _parts_below(piece, rank, ranks)
            merges.append((left, right))
    return merges


def _parts_below(piece: bytes, limit: int, ranks: Mapping[bytes, int]) -> list[bytes]:
    """What byte-pair encoding makes of a piece with the ranks below `limit` alone: two parts."""
    parts = [bytes([value]) for value in piece]
    while True:
        pairs = [(ranks.get(parts[i] + parts[i + 1], limit), i) for i in range(len(parts) - 1)]
        best, place = min(pairs)
        if best >= limit:
            return parts
        parts[place : place + 2] = [parts[place] + parts[place + 1]]


def _byte_names() -> dict[int, str]:
    """The printable sign that stands for each byte in such a file, as GPT-2's tokenizer chose them."""
    shown = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [value for value in range(_BYTES) if value not in shown]
    return {value: chr(value) for value in shown} | {value: chr(_BYTES + i) for i, value in enumerate(hidden)}
