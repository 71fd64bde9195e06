"""Tool calls as they are written: a call's start, then its arguments piece by piece.

The pieces of a call's arguments, joined, are its whole ``arguments``, whatever the model does: a call
that is cut off keeps what was written of it, which is then no whole JSON.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable

import msgspec

from milepost.chat.messages import ToolCall

__all__ = ["CallLog", "ToolCallDelta", "collect_calls", "new_call_id"]


class ToolCallDelta(msgspec.Struct, frozen=True, kw_only=True):
    """What one output adds to one call.

    Attributes:
        index: which call of the reply, from 0.
        id: the call's id, in its first delta only.
        name: of the function, in the first delta only.
        arguments: the next piece of its arguments' JSON text.
    """

    index: int
    id: str | None = None
    name: str | None = None
    arguments: str = ""


class CallLog:
    """Gathers what is added to calls until it is taken."""

    def __init__(self) -> None:
        self._count = 0
        self._started: dict[int, tuple[str, str]] = {}  # index -> (id, name)
        self._pieces: dict[int, list[str]] = {}

    def start(self, name: str, call_id: str | None = None) -> None:
        """A call begins; what is added from now on is its own."""
        self._started[self._count] = (call_id or new_call_id(), name)
        self._pieces[self._count] = []
        self._count += 1

    def add(self, arguments: str) -> None:
        """The next piece of the arguments of the call that began last."""
        if arguments:
            self._pieces.setdefault(self._count - 1, []).append(arguments)

    def take(self) -> tuple[ToolCallDelta, ...]:
        """What was added since the last time, one delta a call."""
        news = []
        for index, pieces in self._pieces.items():
            call_id, name = self._started.get(index, (None, None))
            news.append(ToolCallDelta(index=index, id=call_id, name=name, arguments="".join(pieces)))
        self._started, self._pieces = {}, {}
        return tuple(news)


def collect_calls(deltas: Iterable[ToolCallDelta]) -> tuple[ToolCall, ...]:
    """Whole calls from the deltas of one reply."""
    names: dict[int, tuple[str, str]] = {}
    pieces: dict[int, list[str]] = {}
    for delta in deltas:
        if delta.name is not None:
            names[delta.index] = (delta.id or "", delta.name)
        pieces.setdefault(delta.index, []).append(delta.arguments)
    return tuple(
        ToolCall(id=call_id, name=name, arguments="".join(pieces[index]))
        for index, (call_id, name) in names.items()
    )


def new_call_id() -> str:
    """An id for a call whose form has none of its own."""
    return f"call_{uuid.uuid4().hex[:24]}"
