"""Least recently used, where a hit refreshes the whole path: what caches that know no states do.

    used       every snapshot of the path that a request resumes from is as recent as the deepest
    goes first the deepest snapshot of the path that was used longest ago, so that what goes is a leaf

`Lru` refreshes only what was consumed, which is right where a state costs far more than its KV.
"""

from __future__ import annotations

from milepost.prefix.eviction import Candidate, Unlearning
from milepost.prefix.nodes import Node, Snapshot

__all__ = ["PathLru"]

# Seconds by which a token of depth makes a snapshot older: far less than lies between two requests,
# and enough to tell the snapshots of one path apart.
_SECONDS_A_TOKEN = 1e-10


class PathLru(Unlearning):
    """The deepest snapshot of the path that was longest unused goes first."""

    steady = True

    @property
    def name(self) -> str:
        """``path-lru``."""
        return "path-lru"

    def worth(self, candidate: Candidate, now: float) -> float:  # noqa: ARG002  # the protocol's signature
        """When its path was used last, seconds; a little less the deeper it stands."""
        return candidate.used_at - _SECONDS_A_TOKEN * candidate.position

    def consumed(self, candidate: Candidate, now: float) -> None:
        """Refresh the snapshots above; the cache refreshes the consumed one."""
        if not isinstance(candidate, Snapshot):
            return
        step: Node | None = candidate.node.parent
        while step is not None:
            if step.snapshot is not None:
                step.snapshot.used_at = now
            step = step.parent
