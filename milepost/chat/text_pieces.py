"""Cuts text into bounded pieces before byte-pair encoding, as Moonshot's tokenizer does.

tiktoken's split pattern backtracks over runs of spaces, and one pre-token of a megabyte makes its
merge loop slow; both are worst cases that a user can send on purpose. Moonshot's tokenizer
therefore encodes at most 400,000 characters at once, and cuts any run of spaces or of other
characters at 25,000. The cuts are part of what the model was trained on: tokens never reach across
them, here as there, so they are not a tuning knob.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["MAX_PIECE_CHARS", "MAX_RUN_CHARS", "bounded_pieces", "without_surrogates"]

MAX_PIECE_CHARS = 400_000
MAX_RUN_CHARS = 25_000

_SURROGATE = re.compile("[\ud800-\udfff]")
_RUN = re.compile(r"\s+|\S+")


def bounded_pieces(
    text: str, *, max_piece: int = MAX_PIECE_CHARS, max_run: int = MAX_RUN_CHARS
) -> Iterator[str]:
    """Yield pieces whose concatenation is `text`; time is linear in its length.

    No piece has more than `max_piece` characters, nor more than `max_run` characters in a row that
    are all whitespace or all not.
    """
    for start in range(0, len(text), max_piece):
        yield from _cut_runs(text[start : start + max_piece], max_run)


def _cut_runs(text: str, max_run: int) -> Iterator[str]:
    if len(text) <= max_run:
        yield text
        return
    piece_start = 0
    for run in _RUN.finditer(text):
        # The first `max_run` characters of a run stay with what comes before it.
        for cut in range(run.start() + max_run, run.end(), max_run):
            yield text[piece_start:cut]
            piece_start = cut
    yield text[piece_start:]


def without_surrogates(text: str) -> str:
    r"""`text` with surrogate pairs joined and lone surrogates, which UTF-8 can't hold, as U+FFFD.

    JSON may spell them ("\ud800"), so they come from users.
    """
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
