"""From token ids and numbers to the two forms in which the endpoints report log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence

from milepost.chat.tokenizer import Tokenizer
from milepost.server.protocol.responses import ChatLogprobs, CompletionLogprobs, TokenLogprob, TopLogprob
from milepost.types import TokenLogprobs

__all__ = ["chat_logprobs", "completion_logprobs"]


def chat_logprobs(tokenizer: Tokenizer, drawn: Sequence[TokenLogprobs]) -> ChatLogprobs:
    """The chat endpoint's form."""
    return ChatLogprobs(content=[_token_logprob(tokenizer, entry) for entry in drawn])


def completion_logprobs(
    tokenizer: Tokenizer, drawn: Sequence[TokenLogprobs], offset: int = 0
) -> CompletionLogprobs:
    """The completions endpoint's form.

    Args:
        tokenizer: names the tokens.
        drawn: the tokens, in order.
        offset: characters of the tokens that came before these.
    """
    tokens = [_unique_name(tokenizer, entry.token_id) for entry in drawn]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    return CompletionLogprobs(
        tokens=tokens,
        token_logprobs=[entry.logprob for entry in drawn],
        top_logprobs=[_top_by_name(tokenizer, entry) for entry in drawn],
        text_offset=offsets,
    )


def _token_logprob(tokenizer: Tokenizer, entry: TokenLogprobs) -> TokenLogprob:
    text, data = _text(tokenizer, entry.token_id)
    top = []
    for token_id, logprob in entry.top:
        other, other_bytes = _text(tokenizer, token_id)
        top.append(TopLogprob(token=other, logprob=logprob, bytes=other_bytes))
    return TokenLogprob(token=text, logprob=entry.logprob, bytes=data, top_logprobs=top)


def _top_by_name(tokenizer: Tokenizer, entry: TokenLogprobs) -> dict[str, float]:
    """The alternatives, and the drawn token beside them when it is not one of them."""
    named = {_unique_name(tokenizer, token_id): logprob for token_id, logprob in entry.top}
    named.setdefault(_unique_name(tokenizer, entry.token_id), entry.logprob)
    return named


def _text(tokenizer: Tokenizer, token_id: int) -> tuple[str, list[int] | None]:
    """A token's text and bytes; a special token has a name and no bytes."""
    if name := tokenizer.special_name(token_id):
        return name, None
    data = tokenizer.token_bytes(token_id)
    return data.decode("utf-8", errors="replace"), list(data)


def _unique_name(tokenizer: Tokenizer, token_id: int) -> str:
    r"""A token's text as a key: what is no UTF-8 of its own is spelt ``bytes:\xe2\x80``."""
    if name := tokenizer.special_name(token_id):
        return name
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
