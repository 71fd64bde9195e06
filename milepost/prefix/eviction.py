"""What goes first when pages are needed: eviction policies.

What is evicted is always a snapshot, together with the KV that only it needed; KV that no snapshot
stands on can never be hit and goes before anything else, without a policy being asked. The same
holds for spare snapshots, which go in an order that keeps a spread.
"""

from __future__ import annotations

from typing import Protocol

from milepost.prefix.plan import Reason

__all__ = ["Candidate", "EvictionPolicy"]


class Candidate(Protocol):
    """A cached snapshot as an eviction policy sees it."""

    @property
    def position(self) -> int:
        """Tokens that its state has seen."""
        ...

    @property
    def gap(self) -> int:
        """Tokens from the deepest snapshot before it on its path: what is lost when it is gone."""
        ...

    @property
    def freed_pages(self) -> int:
        """Pages that come free with it: its state, and KV that nothing else needs."""
        ...

    @property
    def used_at(self) -> float:
        """Seconds, when it was last consumed, else when it was written."""
        ...

    @property
    def hits(self) -> int:
        """How often it was consumed."""
        ...

    @property
    def reason(self) -> Reason:
        """Why it was left."""
        ...

    @property
    def superseded(self) -> bool:
        """Never hit, and its conversation went on behind it, where an append-only chat looks."""
        ...


class EvictionPolicy(Protocol):
    """Says which cached snapshot is worth least; the same classes run in the engine and in the simulator."""

    @property
    def name(self) -> str:
        """The policy as it is written on the command line."""
        ...

    def worth(self, candidate: Candidate, now: float) -> float:
        """How much it is worth to keep `candidate` at `now` (seconds); the least goes first."""
        ...

    def consumed(self, candidate: Candidate, now: float) -> None:
        """A request has just resumed from `candidate`, whose fields are still those from before."""
        ...
