r"""Moonshot's ``tiktoken.model``: one line "base64 of the piece, space, rank" per ordinary token.

The ranks are the ids 0 .. n-1; the 256 ids after them are special tokens. Their names are in
tokenizer_config.json's ``added_tokens_decoder``; an id without a name there is
``<|reserved_token_ID|>``. The split pattern is Kimi K3's and Kimi-Linear's (both are the same).
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from pathlib import Path

import tiktoken

from milepost.chat.text_pieces import bounded_pieces, without_surrogates
from milepost.chat.token_table import TokenTable
from milepost.chat.tokenizer import CONFIG_FILE, chat_defaults
from milepost.errors import TokenizerError

__all__ = ["NUM_SPECIAL_TOKENS", "SPLIT_PATTERN", "TiktokenTokenizer", "read_tiktoken"]

NUM_SPECIAL_TOKENS = 256

_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"

SPLIT_PATTERN = "|".join(
    (
        r"[\p{Han}]+",
        r"[^\r\n\p{L}\p{N}]?" + _UPPER + "*" + _LOWER + "+" + _CONTRACTION,
        r"[^\r\n\p{L}\p{N}]?" + _UPPER + "+" + _LOWER + "*" + _CONTRACTION,
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)


class TiktokenTokenizer(TokenTable):
    """A `milepost.chat.tokenizer.Tokenizer` over byte-pair ranks; built by `read_tiktoken`."""

    def __init__(
        self, ranks: Mapping[bytes, int], specials: Mapping[str, int], chat_defaults: Mapping[str, object]
    ) -> None:
        pieces = {rank: piece for piece, rank in ranks.items()}
        super().__init__(pieces, specials, chat_defaults, specials_file=CONFIG_FILE)
        # tiktoken is told of no special tokens, so that it can't produce one.
        self._bpe = tiktoken.Encoding(
            "milepost", pat_str=SPLIT_PATTERN, mergeable_ranks=dict(ranks), special_tokens={}
        )

    def encode(self, text: str) -> list[int]:
        """Ids of `text` as ordinary text, encoded in the bounded pieces of `bounded_pieces`."""
        ids: list[int] = []
        for piece in bounded_pieces(without_surrogates(text)):
            ids.extend(self._bpe.encode_ordinary(piece))
        return ids


def read_tiktoken(path: Path, config: Mapping[str, object]) -> TiktokenTokenizer:
    """Read ``tiktoken.model``.

    Args:
        path: the file.
        config: the contents of tokenizer_config.json.

    Raises:
        TokenizerError: the file is torn, or the special ids don't lie right after its ranks.
    """
    ranks = _read_ranks(path)
    return TiktokenTokenizer(ranks, _read_specials(config, len(ranks)), chat_defaults(config))


def _read_ranks(path: Path) -> dict[bytes, int]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise TokenizerError(
            f"{path} can't be read: {error.strerror}. Check the file's permissions."
        ) from error
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        piece, rank = _parse_line(path, number, line)
        if rank != len(ranks) or piece in ranks:
            raise TokenizerError(
                f"{path}, line {number}: expected a new piece of rank {len(ranks)}, found rank {rank} for "
                f"{piece!r}. The file is torn or not Moonshot's; copy or download it again."
            )
        ranks[piece] = rank
    missing = sum(bytes([value]) not in ranks for value in range(256))
    if missing:
        raise TokenizerError(
            f"{path} lacks {missing} of the 256 single bytes, so that it can't encode every text. "
            "The file is torn; copy or download it again."
        )
    return ranks


def _parse_line(path: Path, number: int, line: bytes) -> tuple[bytes, int]:
    try:
        encoded, rank = line.split()
        piece = base64.b64decode(encoded, validate=True)
        if not piece:
            raise ValueError("empty piece")
        return piece, int(rank)
    except (ValueError, binascii.Error):
        raise TokenizerError(
            f"{path}, line {number}: expected base64 and a rank, found {line[:40]!r}. "
            "The file is torn; copy or download it again."
        ) from None


def _read_specials(config: Mapping[str, object], first_id: int) -> dict[str, int]:
    """Names of all 256 special ids, checked against the ranks."""
    names = {token_id: f"<|reserved_token_{token_id}|>" for token_id in _special_ids(first_id)}
    added = config.get("added_tokens_decoder", {})
    if not isinstance(added, dict):
        raise TokenizerError(f"{CONFIG_FILE}: added_tokens_decoder must be an object. Given: {added!r:.60}.")
    for key, entry in added.items():
        name = entry.get("content") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not key.isdecimal():
            raise TokenizerError(
                f'{CONFIG_FILE}: added_tokens_decoder must map ids to objects with "content". '
                f"Given: {key!r}: {entry!r:.60}."
            )
        if int(key) not in names:
            raise TokenizerError(
                f"{CONFIG_FILE}: the id {key} of {name} is outside the special ids "
                f"{first_id} .. {first_id + NUM_SPECIAL_TOKENS - 1} that follow tiktoken.model's "
                f"{first_id} pieces. The two files belong to different models."
            )
        names[int(key)] = name
    specials = {name: token_id for token_id, name in names.items()}
    if len(specials) != len(names):
        raise TokenizerError(f"{CONFIG_FILE}: added_tokens_decoder gives one name to two ids.")
    return specials


def _special_ids(first_id: int) -> range:
    return range(first_id, first_id + NUM_SPECIAL_TOKENS)
