"""A step's transfers between the arena and the tiers behind it, as the scheduler sees them."""

from __future__ import annotations

from collections.abc import Iterable

from milepost.prefix.cache import Match, PrefixCache
from milepost.prefix.tiers import Tiers
from milepost.scheduler.sequence import Sequence
from milepost.types import Transfer, TransferResult

__all__ = ["Transfers"]


class Transfers:
    """Asks the cache's tiers, and answers for them where there are none.

    Args:
        cache: whose tiers they are; None without a cache.
    """

    def __init__(self, cache: PrefixCache | None) -> None:
        self._cache = cache

    @property
    def waiting(self) -> bool:
        """Whether any wait for the next batch."""
        return self._tiers is not None and self._tiers.has_transfers

    @property
    def running(self) -> bool:
        """Whether any have not ended yet."""
        return self._tiers is not None and self._tiers.is_busy

    @property
    def loading(self) -> bool:
        """Whether pages of the arena wait for their content from another tier."""
        return self._tiers is not None and self._tiers.is_loading

    def fetch(self, sequence: Sequence, match: Match) -> int | None:
        """Begin to load what another tier has beyond `match`; the transfer to wait for, or None."""
        if self._cache is None or sequence.trail is None:
            return None
        return self._cache.fetch(sequence.trail, sequence.tokens, match)

    def take(self) -> tuple[Transfer, ...]:
        """Those that go with the coming batch."""
        return () if self._tiers is None else self._tiers.take_transfers()

    def ended(self, results: Iterable[TransferResult]) -> list[int]:
        """Take in which have ended; returns the loads for which nobody needs to wait any more."""
        return [] if self._tiers is None else self._tiers.ended(results)

    def reset(self) -> list[int]:
        """Empty the other tiers; returns the loads that are given up."""
        return [] if self._tiers is None else self._tiers.reset()

    @property
    def _tiers(self) -> Tiers | None:
        # Asked each time: tiers may be added to a cache after its scheduler was built.
        return None if self._cache is None else self._cache.tiers
