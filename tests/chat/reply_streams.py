"""Replies as the engine streams them, cut anywhere."""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from milepost.chat.reply import Reply, ReplyParser, collect_reply
from milepost.chat.tokenizer import Tokenizer
from milepost.types import FinishReason, RequestOutput, Usage

Outcome = tuple[str, str, list[tuple[str, str]]]

_MARKER = re.compile(r"(<\|[a-z_]+\|>)")


def spelled_in_bytes(tokenizer: Tokenizer, text: str | bytes) -> list[int]:
    """The ids of a reply: markers by name, each byte of everything else a token of its own."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    ids: list[int] = []
    for part in _MARKER.split(text):
        if _MARKER.fullmatch(part):
            ids.append(tokenizer.special(part))
        else:
            # The small vocabularies begin with the 256 bytes.
            ids.extend(part.encode("utf-8", "surrogateescape"))
    return ids


def stream(
    tokenizer: Tokenizer,
    ids: Sequence[int],
    cuts: Sequence[int],
    reason: FinishReason = FinishReason.STOP,
) -> Iterator[RequestOutput]:
    """The engine's outputs for `ids`, cut behind so many tokens each; half characters wait for their rest."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    bounds = [0, *cuts, len(ids)]
    for start, end in itertools.pairwise(bounds):
        final = end == len(ids)
        chunk = tuple(ids[start:end])
        yield RequestOutput(
            request_id="r",
            text=decoder.decode(b"".join(map(tokenizer.token_bytes, chunk)), final=final),
            token_ids=chunk,
            finish_reason=reason if final else None,
            stop_reason=ids[-1] if final and reason is FinishReason.STOP else None,
            usage=Usage(prompt_tokens=1, output_tokens=end),
        )
        if final:
            return


def stopped_stream(
    tokenizer: Tokenizer, ids: Sequence[int], cuts: Sequence[int], num_shown: int
) -> Iterator[RequestOutput]:
    """The same where a stop string ends the reply behind so many characters; those come as they can."""
    whole = "".join(news.text for news in stream(tokenizer, ids, ()))[:num_shown]
    told = 0
    for news in stream(tokenizer, ids, cuts):
        text = whole[told:] if news.finished else whole[told : told + len(news.text)]
        told += len(text)
        stop = "stop" if news.finished else None
        yield msgspec.structs.replace(news, text=text, stop_reason=stop)


def outcome(reply: Reply) -> Outcome:
    """A reply but for its calls' ids, which are drawn at random."""
    return (
        reply.content,
        reply.reasoning or "",
        [(call.name, call.arguments) for call in reply.tool_calls],
    )


def parsed(
    parser: Callable[[], ReplyParser],
    tokenizer: Tokenizer,
    ids: Sequence[int],
    cuts: Sequence[int] = (),
    reason: FinishReason = FinishReason.STOP,
) -> Outcome:
    """What a client gets of a reply that comes in these pieces."""
    fresh = parser()
    return outcome(collect_reply([fresh.feed(news) for news in stream(tokenizer, ids, cuts, reason)]))
