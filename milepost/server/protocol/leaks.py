"""What errors say of this machine, and no client should read."""

from __future__ import annotations

import re
import socket

__all__ = ["without_paths"]

_QUOTED = re.compile(r"(['\"])[^'\"\n]*[/\\][^'\"\n]*\1")
# Not the slash within "and/or", nor that of a URL.
_BARE = re.compile(r"(?<![\w:/.\]])(?:~|[A-Za-z]:|\.{1,2})?[/\\][^\s'\"`,;:()<>\[\]]+")

_MIN_HOST_CHARS = 3  # shorter ones are words too


def without_paths(message: str) -> str:
    """An error's text without paths of files and the name of this machine.

    For texts that were not written for clients: what an executor or the operating system says. The log has
    them whole.
    """
    shown = _BARE.sub("[path]", _QUOTED.sub("[path]", message))
    full = socket.gethostname()
    for name in (full, full.partition(".")[0]):
        if len(name) >= _MIN_HOST_CHARS and name != "localhost":
            shown = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", "[host]", shown)
    return shown
