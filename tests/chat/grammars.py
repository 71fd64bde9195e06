"""Whether a grammar lets a reply be written: llguidance over a small tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import llguidance

from milepost.chat.tokenizer import Tokenizer
from milepost.types import Grammar


class _Vocabulary:
    """What llguidance asks of a tokenizer; its own end token is one that no grammar names."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        ids = range(tokenizer.vocab_size)
        names = {token_id: name for token_id in ids if (name := tokenizer.special_name(token_id))}
        self.tokens = [names[i].encode() if i in names else tokenizer.token_bytes(i) for i in ids]
        self.special_token_ids = list(names)
        self.eos_token_id = tokenizer.special("[EOS]")
        self.bos_token_id = None

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text.decode() if isinstance(text, bytes) else text)


def llguidance_tokenizer(tokenizer: Tokenizer) -> llguidance.LLTokenizer:
    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Vocabulary(tokenizer)))


def problem(
    tokens: llguidance.LLTokenizer, grammar: Grammar, ids: Sequence[int], stops: Sequence[int] = ()
) -> str:
    """Where a reply leaves the grammar, and what would have been allowed there; "" for a whole reply."""
    matcher = llguidance.LLMatcher(tokens, grammar.lark, log_level=0)
    if matcher.is_error():
        return matcher.get_error()
    for at, token_id in enumerate(ids):
        if matcher.is_stopped() or matcher.try_consume_tokens([token_id]) != 1:
            if token_id in stops and at == len(ids) - 1 and matcher.is_accepting():
                return ""
            return f"token {at}, {token_id}, is refused"
    return "" if matcher.is_accepting() or matcher.is_stopped() else "the reply is not over"
