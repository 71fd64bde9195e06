"""From what clients send to token ids and grammars, in time that the context bounds and not the client.

Everything here takes long for long prompts: call it in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from milepost.chat.encoding import ChatOptions, EncodedPrompt
from milepost.chat.tokenizer import Tokenizer
from milepost.errors import RequestTooLargeError
from milepost.server.protocol.structured import grammar_refusals
from milepost.server.services import Services
from milepost.types import Grammar

__all__ = ["checked_grammar", "encode_chat", "encode_text", "most_prompt_tokens", "refuse_overlong"]

# Text of fewer characters a token is tokenised at once; real text has about 4.
SUSPECT_CHARS_PER_TOKEN = 8
PIECE_CHARS = 1 << 16
# A cut in the middle of a word makes a few tokens more than the whole text has, at most about this many.
EXTRA_TOKENS_PER_CUT = 16

# Earlier reasoning may be left out of a prompt, so it doesn't count.
UNCOUNTED_FIELDS = {"reasoning", "reasoning_content"}


def most_prompt_tokens(services: Services) -> int:
    """The longest prompt that can be served: with room for one token of output."""
    return services.engine.limits.max_length - 1


def checked_grammar(services: Services, grammar: Grammar | None, param: str | None) -> Grammar | None:
    """The grammar, if it can be obeyed; it is then most often ready when its request starts.

    Raises:
        HttpError: 400 ``invalid_grammar`` with the compiler's own words.
    """
    if grammar is not None:
        with grammar_refusals(param):
            services.grammars.check(grammar, param=param)
    return grammar


def encode_text(services: Services, prompt: str) -> tuple[int, ...]:
    """Token ids of a prompt.

    Raises:
        RequestTooLargeError: there are more than can ever be served.
    """
    refuse_overlong(services.tokenizer, [prompt], most_prompt_tokens(services), "prompt")
    return tuple(services.tokenizer.encode(prompt))


def encode_chat(
    services: Services, messages: Sequence[Mapping[str, Any]], options: ChatOptions, *, contexts: int = 1
) -> EncodedPrompt:
    """The prompt of a conversation.

    Args:
        services: whose chat encoding writes it.
        messages: OpenAI-style messages.
        options: everything else that shapes it.
        contexts: the longest prompts that it may be as long as.

    Raises:
        RequestTooLargeError: its texts alone have more tokens than that.
        RequestError: as of `milepost.chat.encoding.ChatEncoding.encode`.
    """
    texts = list(_texts_in([*messages, *(options.tools or ())]))
    refuse_overlong(services.tokenizer, texts, contexts * most_prompt_tokens(services), "messages")
    return services.encoding.encode(messages, options)


def refuse_overlong(tokenizer: Tokenizer, texts: Sequence[str], most: int, param: str) -> None:
    """Refuse texts that are sure to hold more than `most` tokens, without tokenising them to their end.

    Tokenising takes a second a megabyte and no client may ask for many of them in vain. Texts that may hold
    too many are counted piece by piece, up to the limit; what passes costs no more than twice.

    Raises:
        RequestTooLargeError: so they do; ``param`` is the given one.
    """
    if sum(map(len, texts)) <= most * SUSPECT_CHARS_PER_TOKEN:
        return
    count = 0
    for piece, extra in _pieces(texts):
        count += max(0, len(tokenizer.encode(piece)) - extra)
        if count > most:
            raise RequestTooLargeError(
                f"The prompt must be at most {most} tokens. Given: more. Shorten it.", param=param
            )


def _pieces(texts: Iterable[str]) -> Iterator[tuple[str, int]]:
    """(piece, tokens by which cutting may have made it longer)."""
    for text in texts:
        for start in range(0, len(text), PIECE_CHARS):
            yield text[start : start + PIECE_CHARS], EXTRA_TOKENS_PER_CUT if start else 0


def _texts_in(content: object) -> Iterator[str]:
    """Every string in JSON of bounded depth that a prompt may repeat."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, Mapping):
        for name, value in content.items():
            if name not in UNCOUNTED_FIELDS:
                yield from _texts_in(value)
    elif isinstance(content, list | tuple):
        for item in content:
            yield from _texts_in(item)
