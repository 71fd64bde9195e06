"""Tokenizer files of toy checkpoints: byte-level pieces, a few merges, and the published specials.

Ids follow the published order: ordinary tokens first, 256 specials behind them, so that special 163584 + n of
the published vocabulary is base_vocab + n here.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections import Counter
from collections.abc import Mapping

from milepost.testing.toy_config import SPECIAL_TOKENS

__all__ = ["NAMED_SPECIALS", "toy_ranks", "toy_tokenizer_files"]

NAMED_SPECIALS: dict[str, dict[int, str]] = {
    "kimi_k3": {
        0: "[BOS]",
        1: "[EOS]",
        2: "<|end_of_msg|>",
        3: "<|open|>",
        4: "<|close|>",
        5: "<|sep|>",
        6: "[start_header_id]",
        7: "[end_header_id]",
        9: "[EOT]",
        18: "<|media_begin|>",
        19: "<|media_content|>",
        20: "<|media_end|>",
        21: "<|media_pad|>",
        65: "<osagent_mode>",
        254: "[UNK]",
        255: "[PAD]",
    },
    "kimi_linear": {
        0: "[BOS]",
        1: "[EOS]",
        2: "<|im_end|>",
        3: "<|im_user|>",
        4: "<|im_assistant|>",
        6: "<|start_header_id|>",
        7: "<|end_header_id|>",
        9: "[EOT]",
        10: "<|im_system|>",
        11: "<|tool_calls_section_begin|>",
        12: "<|tool_calls_section_end|>",
        13: "<|tool_call_begin|>",
        14: "<|tool_call_argument_begin|>",
        15: "<|tool_call_end|>",
        17: "<|im_middle|>",
        254: "[UNK]",
        255: "[PAD]",
    },
}
"""Names in tokenizer_config.json, by offset behind the ordinary tokens; others are <|reserved_token_ID|>."""

# Published with "special": false: markers inside a reply that a decoder shows.
_SHOWN = {"<|open|>", "<|close|>", "<|sep|>"} | {
    name for name in NAMED_SPECIALS["kimi_linear"].values() if name.startswith("<|tool_call")
}

_STOP_OFFSET = 2

_TEXT = (
    "the mile post stands beside the road and tells the traveller how far the next town is ; "
    "a state that every token overwrites leaves no trace of the road behind it , and so the posts are set "
    "where the road is likely to be taken again . there are those who set them thick and those who don't . "
    "def forward ( self , hidden_states ) : return self . norm ( hidden_states ) "
)


def toy_ranks(base_vocab: int) -> dict[bytes, int]:
    """Byte-pair ranks: the 256 bytes in order, then merges learnt from a few sentences.

    Args:
        base_vocab: number of ordinary tokens, 256 plus the merges.

    Raises:
        ValueError: fewer than 256, or more merges than the sentences give.
    """
    if base_vocab < 256:
        raise ValueError(f"A byte-level vocabulary has at least 256 tokens. Given: {base_vocab}.")
    ranks = {bytes([byte]): byte for byte in range(256)}
    words = Counter(tuple(bytes([byte]) for byte in f" {word}".encode()) for word in _TEXT.split())
    while len(ranks) < base_vocab:
        pairs: Counter[tuple[bytes, bytes]] = Counter()
        for word, count in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += count
        fresh = [pair for pair in pairs if pair[0] + pair[1] not in ranks]
        if not fresh:
            raise ValueError(
                f"The toy text gives {len(ranks)} tokens. Given: base_vocab {base_vocab}. Ask for fewer."
            )
        best = max(fresh, key=lambda pair: (pairs[pair], pair))
        ranks[best[0] + best[1]] = len(ranks)
        words = Counter({_merged(word, best): count for word, count in words.items()})
    return ranks


def _merged(word: tuple[bytes, ...], pair: tuple[bytes, bytes]) -> tuple[bytes, ...]:
    out: list[bytes] = []
    for piece in word:
        if out and (out[-1], piece) == pair:
            out[-1] += piece
        else:
            out.append(piece)
    return tuple(out)


def toy_tokenizer_files(family: str, base_vocab: int) -> dict[str, bytes]:
    """tiktoken.model, tokenizer_config.json and generation_config.json.

    Args:
        family: "kimi_k3" or "kimi_linear".
        base_vocab: as of `toy_ranks`; the vocabulary has 256 ids more.

    Returns:
        File contents by name.
    """
    lines = [b"%s %d\n" % (base64.b64encode(piece), rank) for piece, rank in toy_ranks(base_vocab).items()]
    generation = {"eos_token_id": base_vocab + _STOP_OFFSET, "max_length": 1_048_576}
    return {
        "tiktoken.model": b"".join(lines),
        "tokenizer_config.json": _json(_tokenizer_config(family, base_vocab)),
        "generation_config.json": _json(generation),
    }


def _tokenizer_config(family: str, base_vocab: int) -> dict[str, object]:
    named = NAMED_SPECIALS[family]
    assert max(named) < SPECIAL_TOKENS
    return {
        "added_tokens_decoder": {
            str(base_vocab + offset): {
                "content": name,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": name not in _SHOWN,
            }
            for offset, name in named.items()
        },
        "additional_special_tokens": [name for name in named.values() if name not in _SHOWN],
        "auto_map": {"AutoTokenizer": ["tokenization_kimi.TikTokenTokenizer", None]},
        "bos_token": "[BOS]",
        "clean_up_tokenization_spaces": False,
        "eos_token": "[EOS]",
        "model_max_length": 1_048_576,
        "pad_token": "[PAD]",
        "tokenizer_class": "TikTokenTokenizer",
        "unk_token": "[UNK]",
    }


def _json(content: Mapping[str, object]) -> bytes:
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()
