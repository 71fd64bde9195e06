"""What benchmarks on recorded traffic are given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

__all__ = ["OnTraces"]


@dataclass(frozen=True)
class OnTraces:
    """The part of the command line that is theirs.

    Attributes:
        folder: where the traces lie.
        peer_python: a Python that has the peers; None to install them.
        quick: only a part of each trace.
    """

    folder: Path
    peer_python: Path | None = None
    quick: bool = False
