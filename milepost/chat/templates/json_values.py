"""Finds the end of a JSON object while it arrives."""

from __future__ import annotations

import re

__all__ = ["JsonScanner"]

_STRUCTURE = re.compile(r'["{}\[\]]')
_IN_STRING = re.compile(r'["\\]')


class JsonScanner:
    """Follows one JSON object or list from its first bracket; it is not checked otherwise.

    Attributes:
        ended: whether its last bracket has been taken.
    """

    def __init__(self) -> None:
        self.ended = False
        self._depth = 0
        self._in_string = False
        self._escaped = False

    def take(self, text: str) -> int:
        """How many characters of the next text belong to it."""
        at = 0
        while at < len(text) and not self.ended:
            if self._escaped:
                self._escaped = False
                at += 1
                continue
            found = (_IN_STRING if self._in_string else _STRUCTURE).search(text, at)
            if found is None:
                return len(text)
            at = found.end()
            self._step(found[0])
        return at

    def _step(self, char: str) -> None:
        if self._in_string:
            self._escaped = char == "\\"
            self._in_string = self._escaped
        elif char == '"':
            self._in_string = True
        else:
            self._depth += 1 if char in "{[" else -1
            self.ended = self._depth <= 0
