"""Says that transfers fail, once in a while: on a full disk every one of them does."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from milepost.types import Tier, Transfer

__all__ = ["FailureLog"]

logger = logging.getLogger(__name__)

_SECONDS = 600.0  # between two warnings of one kind


class FailureLog:
    """Warns of the first failure of each kind, and later how many there have been since.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By source and target: when it was told last, and failures since.
        self._told: dict[tuple[Tier, Tier], tuple[float, int]] = {}

    def note(self, transfer: Transfer, error: str) -> None:
        """A transfer has failed."""
        kind = transfer.source, transfer.target
        told_at, since = self._told.get(kind, (-_SECONDS, 0))
        now = self._clock()
        if now - told_at < _SECONDS:
            self._told[kind] = told_at, since + 1
            return
        self._told[kind] = now, 0
        logger.warning(
            "The prefix cache could not copy from %s to %s: %s%s Requests go on without what it holds "
            "there; the metrics count all failures.",
            transfer.source.value,
            transfer.target.value,
            error if error.endswith(".") else f"{error}.",
            f" It failed {since} times since the last warning." if since else "",
        )
