"""Descriptors: each connection is an open file, and a process may have only so many."""

from __future__ import annotations

import resource

__all__ = ["OTHER_FILES", "files_allowed", "room_for_connections"]

OTHER_FILES = 256
"""Open beside connections: the checkpoint's shards, the disk cache, libraries, the event loop."""


def files_allowed() -> int | None:
    """Files that this process may have open once it has asked for as many as it can; None without a limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def room_for_connections(wanted: int) -> int:
    """Raise this process's limit of open files as far as `wanted` connections need and may.

    The usual limit of 1,024 is a soft one, kept for programs that use ``select``.

    Returns:
        connections that fit, at most `wanted`: a client that is turned away costs a descriptor, too, and
        without any left not even that can be said.
    """
    needed = wanted + OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    allowed = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    # Of few files, most are still for connections.
    return min(wanted, max(allowed - OTHER_FILES, allowed // 2))
