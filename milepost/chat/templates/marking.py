"""Keeps what users write from becoming special tokens of a template's text.

A template's text is one string, in which ``<|im_end|>`` is a special token whoever wrote it. So every string
that a user gave is marked before it is rendered: a character that no string of the request holds, drawn
anew for each, is put behind every character that begins a special token's spelling and before every one that
ends it. A spelling that has come through the template whole was therefore written by the template; the marks
are then taken out, and all else is tokenised as ordinary text.

A user's string may also stand in the middle of what a template writes, as in ``'<|' + name + '|>'``: one that
is all of a special token's words is marked behind its last character.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, groupby
from typing import Any

import msgspec

from milepost.chat.tokenizer import Tokenizer

__all__ = ["Marks", "SpecialSpellings", "TemplatePiece"]

# The two planes of private use: a mark is one character, none that a model's text has a use for.
_MARKS = range(0xF0000, 0xFFFFE)
# Templates compare these; Qwen's tokenizer has an <|object_ref_start|>.
_TYPES = frozenset(("string", "number", "integer", "boolean", "null", "object", "array"))


class TemplatePiece(msgspec.Struct, frozen=True):
    """A part of a template's text: a special token, or text between two.

    Attributes:
        text: its spelling, marks included.
        token_ids: its tokens.
    """

    text: str
    token_ids: tuple[int, ...]


class SpecialSpellings:
    """The spellings of a tokenizer's special tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        names = {
            name: token_id
            for token_id in range(tokenizer.vocab_size)
            if (name := tokenizer.special_name(token_id))
        }
        self._tokenizer = tokenizer
        self._ids = names
        self._any = _any_of(names)
        self._words = frozenset(run for name in names for run in _runs_of_words(name))
        self._firsts = {name[0] for name in names}
        self._lasts = {name[-1] for name in names}

    def marks_for(self, values: object) -> Marks:
        """Marks that occur in none of `values`."""
        given = list(_strings(values))
        mark = chr(secrets.choice(_MARKS))
        while any(mark in text for text in given):
            mark = chr(secrets.choice(_MARKS))
        return Marks(mark, self._mark)

    def _mark(self, text: str, mark: str, whole: bool) -> str:
        core = text.strip()
        marked = text
        for char in self._lasts:
            marked = marked.replace(char, mark + char)
        for char in self._firsts:
            marked = marked.replace(char, char + mark)
        if whole and core.casefold() in self._words:
            end = len(marked.rstrip())
            marked = marked[:end] + mark + marked[end:]
        return marked

    def split(self, text: str, mark: str) -> list[TemplatePiece]:
        """The special tokens of a template's text, and the text between them."""
        pieces: list[TemplatePiece] = []
        for found in self._any.split(text):
            if found in self._ids:
                pieces.append(TemplatePiece(found, (self._ids[found],)))
            elif found:
                ids = self._tokenizer.encode(found.replace(mark, ""))
                pieces.append(TemplatePiece(found, tuple(ids)))
        return pieces


class Marks:
    """Marks the strings of one request; made by `SpecialSpellings.marks_for`.

    Attributes:
        mark: the character.
    """

    def __init__(self, mark: str, marked: Callable[[str, str, bool], str]) -> None:
        self.mark = mark
        self._marked = marked

    def text(self, text: str) -> str:
        """A string, marked."""
        return self._marked(text, self.mark, True)

    def values(self, value: Any) -> Any:  # noqa: ANN401  # JSON
        """JSON with its strings marked.

        Keys, by which a template finds its way, are marked only where they must be; the ``type`` of a JSON
        Schema is not.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self._marked(key, self.mark, False) if isinstance(key, str) else key: part
                if key == "type" and isinstance(part, str) and part in _TYPES
                else self.values(part)
                for key, part in value.items()
            }
        if isinstance(value, Sequence) and not isinstance(value, bytes):
            return [self.values(part) for part in value]
        return value


def _strings(value: object) -> Iterable[str]:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, str):
            yield found
        elif isinstance(found, Mapping):
            waiting.extend(found.keys())
            waiting.extend(found.values())
        elif isinstance(found, Sequence) and not isinstance(found, bytes):
            waiting.extend(found)


def _runs_of_words(name: str) -> Iterable[str]:
    """Words of a name that follow one another, with what stands between them."""
    bounds = [found.span() for found in re.finditer(r"[^\W_]+", name)]
    for (start, _), (_, end) in [*combinations(bounds, 2), *((bound, bound) for bound in bounds)]:
        yield name[start:end].casefold()


def _any_of(names: Iterable[str]) -> re.Pattern[str]:
    """Finds any of the names, as its one group; of those that begin alike the longest.

    They stand together by their first two characters, of which a user's text has one alone: whatever it
    holds, it is looked through quickly.
    """
    ordered = sorted(names, key=lambda name: (name[:2], -len(name)))
    groups = [
        f"{re.escape(start)}(?:{'|'.join(re.escape(name[2:]) for name in group)})"
        for start, group in groupby(ordered, key=lambda name: name[:2])
    ]
    return re.compile(f"({'|'.join(groups)})") if groups else re.compile(r"((?!))")
