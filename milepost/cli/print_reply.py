"""How a reply appears at the terminal while it is written, in ``generate`` and ``chat`` alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from milepost.chat.reply import Reply, ReplyDelta, collect_reply
from milepost.cli.terminal import notes, write
from milepost.types import RequestOutput

__all__ = ["print_reply"]


def print_reply(
    parts: Iterable[tuple[ReplyDelta, RequestOutput]], saw: Callable[[RequestOutput], None]
) -> Reply:
    """Write content as it comes, then one line of JSON a tool call; reasoning only where somebody watches.

    Args:
        parts: what each step adds, and the output that it came from.
        saw: told of each output.

    Returns:
        the whole reply.
    """
    console = notes()
    deltas: list[ReplyDelta] = []
    for delta, output in parts:
        saw(output)
        deltas.append(delta)
        if delta.reasoning and console.is_terminal:
            console.print(delta.reasoning, style="dim", end="", markup=False)
        if delta.content:
            write(delta.content)
    write("\n")
    reply = collect_reply(deltas)
    for call in reply.tool_calls:
        write(msgspec.json.encode(call).decode(), end="\n")
    return reply
