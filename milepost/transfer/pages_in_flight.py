"""Which pages background transfers read and write, so that a step that touches them is found out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from milepost.errors import InvariantError
from milepost.types import Batch, Tier, Transfer

__all__ = ["PagesInFlight"]

_Place = tuple[Tier, int]


class PagesInFlight:
    """From a transfer's start until its result is told, its pages are nobody else's.

    What it writes may not be read or written, wanted or not; what it reads may be read. Rows are not
    looked at, whose tables grow with the context; everything else of a batch is.
    """

    def __init__(self) -> None:
        self._transfers: dict[int, Transfer] = {}
        self._reads: Counter[_Place] = Counter()
        self._writes: set[_Place] = set()

    def add(self, transfer: Transfer) -> None:
        """A transfer starts.

        Raises:
            InvariantError: it touches pages of another one.
        """
        self.check_transfer(transfer)
        if transfer.transfer_id in self._transfers:
            raise InvariantError(f"Transfer {transfer.transfer_id} is started twice.")
        self._transfers[transfer.transfer_id] = transfer
        self._reads.update(_sources(transfer))
        self._writes.update(_targets(transfer))

    def remove(self, transfer_id: int) -> Transfer | None:
        """Its result is told; returns the transfer if it was in flight."""
        transfer = self._transfers.pop(transfer_id, None)
        if transfer is None:
            return None
        self._writes.difference_update(_targets(transfer))
        for place in _sources(transfer):
            self._reads[place] -= 1
            if not self._reads[place]:
                del self._reads[place]
        return transfer

    def check_transfer(self, transfer: Transfer) -> None:
        """Prove that a transfer touches no page in flight.

        Raises:
            InvariantError: it does.
        """
        if self._transfers:
            who = f"Transfer {transfer.transfer_id}"
            self._check(who, _sources(transfer), _targets(transfer))

    def check_step(self, batch: Batch) -> None:
        """Prove that a step's scrubs, copies and snapshots touch no page in flight.

        Raises:
            InvariantError: they do.
        """
        if not self._transfers:
            return
        tails = (page for page, _ in batch.tail_scrubs)
        written = [*batch.scrubs, *tails, *(target for _, target in batch.copies)]
        written += [page for row in batch.rows for order in row.snapshots for page in order.pages]
        reads = [(Tier.ARENA, source) for source, _ in batch.copies]
        self._check(f"Step {batch.step}", reads, [(Tier.ARENA, page) for page in written])

    def _check(self, who: str, reads: Iterable[_Place], writes: list[_Place]) -> None:
        for verb, places, others, other_verb in (
            ("reads", reads, self._writes, "writing"),
            ("writes", writes, self._writes, "writing"),
            ("writes", writes, self._reads.keys(), "reading"),
        ):
            for place in places:
                if place in others:
                    tier, page = place
                    raise InvariantError(
                        f"{who} {verb} page {page} of the {tier.value} tier, "
                        f"which a transfer is still {other_verb}."
                    )


def _sources(transfer: Transfer) -> list[_Place]:
    return [(transfer.source, page) for page, _ in transfer.pages]


def _targets(transfer: Transfer) -> list[_Place]:
    return [(transfer.target, page) for _, page in transfer.pages]
