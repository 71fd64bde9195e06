"""A small vocabulary with what is hard for grammars: merges, special tokens, holes, ids past its end."""

from __future__ import annotations

from collections.abc import Iterator

from milepost.grammar.compiler import GrammarCompiler, Matcher
from milepost.types import Grammar

MERGES = (
    *(b"ab", b"abc", b"bc", b'{"', b'":', b'"}', b'": "', b"  ", b"<|"),
    *(b"true", b"12", b"\xc3\xa9", b"\xf0\x9f"),
)
SPECIALS = ("<|end|>", "<|open|>", "<|close|>", "[EOS]")
NUM_WORDS = 256 + len(MERGES)
HOLES = 3
END, OPEN, CLOSE, EOS = (NUM_WORDS + HOLES + index for index in range(4))
STOPS = (END, EOS)
VOCAB = EOS + 1
MODEL_VOCAB = VOCAB + 25  # the model's logits are wider than the tokenizer


class Words:
    """All bytes, some merges, three ids that stand for nothing, and special tokens."""

    vocab_size = VOCAB

    def special_name(self, token_id: int) -> str | None:
        return SPECIALS[token_id - END] if END <= token_id < VOCAB else None

    def token_bytes(self, token_id: int) -> bytes:
        if token_id < 256:
            return bytes([token_id])
        return MERGES[token_id - 256] if token_id < NUM_WORDS else b""


def compiler() -> GrammarCompiler:
    return GrammarCompiler(Words(), vocab_size=MODEL_VOCAB, stop_token_ids=STOPS)


def accepts(grammars: GrammarCompiler, grammar: Grammar, tokens: list[int]) -> bool:
    """Whether every one of some tokens is allowed where it comes, and the reply may end after them."""
    matcher = grammars.matcher(grammar)
    for token_id in tokens:
        if not matcher.mask()[token_id]:
            return False
        matcher.take(token_id)
    return may_end(matcher)


def may_end(matcher: Matcher) -> bool:
    mask = matcher.mask()
    assert mask[END] == mask[EOS]
    return bool(mask[END])


def splits(text: bytes) -> Iterator[list[int]]:
    """Every way to spell a text with the vocabulary."""
    if not text:
        yield []
        return
    for token_id in range(NUM_WORDS):
        word = Words().token_bytes(token_id)
        if text.startswith(word):
            yield from ([token_id, *rest] for rest in splits(text[len(word) :]))
