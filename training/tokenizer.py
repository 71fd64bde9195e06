"""A byte-level BPE in Moonshot's file form: ``tiktoken.model`` and ``tokenizer_config.json``."""

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import tiktoken
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

from milepost.chat.tiktoken_file import NUM_SPECIAL_TOKENS, SPLIT_PATTERN
from milepost.testing.toy_tokenizer import NAMED_SPECIALS

_NAMED = NAMED_SPECIALS["kimi_k3"]
_NOT_FLAGGED_SPECIAL = {"<|open|>", "<|close|>", "<|sep|>"}


class ToyTokenizer:
    """Encodes text with special tokens disallowed; specials are ids that only a renderer inserts."""

    def __init__(self, ranks: dict[bytes, int]) -> None:
        self.specials = {name: len(ranks) + offset for offset, name in enumerate(_special_names(len(ranks)))}
        self.vocab_size = len(ranks) + NUM_SPECIAL_TOKENS
        self._encoding = tiktoken.Encoding(
            "milepost-toy", pat_str=SPLIT_PATTERN, mergeable_ranks=ranks, special_tokens=self.specials
        )

    @classmethod
    def load(cls, folder: Path) -> "ToyTokenizer":
        """Read ``tiktoken.model`` from ``folder``."""
        lines = (folder / "tiktoken.model").read_bytes().split(b"\n")
        pairs = (line.split() for line in lines if line)
        return cls({base64.b64decode(piece): int(rank) for piece, rank in pairs})

    def encode(self, text: str) -> list[int]:
        """Ids of ordinary text."""
        return self._encoding.encode_ordinary(text)

    def decode(self, ids: list[int]) -> str:
        """Text of ids, specials included."""
        return self._encoding.decode(ids)

    def count(self, text: str) -> int:
        """How many tokens ``text`` is."""
        return len(self.encode(text))


def train_ranks(texts: Iterable[str], size: int) -> dict[bytes, int]:
    """Train ``size`` byte-pair ranks; the first 256 are the bytes in order.

    Digits are blanked out first, so that no merge contains one and every digit stays a token of its own.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = _byte_characters()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=list(alphabet), show_progress=False)
    tokenizer.train_from_iterator((_without_digits(text) for text in texts), trainer)
    vocab = tokenizer.get_vocab()
    pieces = [bytes(alphabet[char] for char in piece) for piece in sorted(vocab, key=vocab.__getitem__)]
    merged = [piece for piece in pieces if len(piece) > 1]
    return {piece: rank for rank, piece in enumerate([bytes([value]) for value in range(256)] + merged)}


def save(ranks: dict[bytes, int], folder: Path, model_max_length: int) -> None:
    """Write the two tokenizer files into ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = (base64.b64encode(piece) + b" " + str(rank).encode() for piece, rank in ranks.items())
    (folder / "tiktoken.model").write_bytes(b"\n".join(lines) + b"\n")
    config = json.dumps(_tokenizer_config(len(ranks), model_max_length), indent=2)
    (folder / "tokenizer_config.json").write_text(config + "\n")


def _tokenizer_config(num_ranks: int, model_max_length: int) -> dict[str, Any]:
    names = _special_names(num_ranks)
    return {
        "added_tokens_decoder": {
            str(num_ranks + offset): {
                "content": name,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": name not in _NOT_FLAGGED_SPECIAL,
            }
            for offset, name in enumerate(names)
        },
        "bos_token": "[BOS]",
        "eos_token": "[EOS]",
        "pad_token": "[PAD]",
        "unk_token": "[UNK]",
        "clean_up_tokenization_spaces": False,
        "default_chat_template_kwargs": {"thinking": False},
        "model_max_length": model_max_length,
        "tokenizer_class": "TikTokenTokenizer",
    }


def _special_names(num_ranks: int) -> list[str]:
    """The 256 special tokens in id order; unnamed ones carry their id, as in Moonshot's files."""
    return [
        _NAMED.get(offset, f"<|reserved_token_{num_ranks + offset}|>") for offset in range(NUM_SPECIAL_TOKENS)
    ]


def _without_digits(text: str) -> str:
    return "".join(" " if char.isdigit() else char for char in text)


def _byte_characters() -> dict[str, int]:
    """The printable character by which byte-level BPE stands for each byte."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    characters, spare = {}, 0x100
    for value in range(256):
        if value in printable:
            characters[chr(value)] = value
        else:
            characters[chr(spare)] = value
            spare += 1
    return characters
