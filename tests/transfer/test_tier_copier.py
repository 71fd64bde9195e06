from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from milepost.errors import InvariantError
from milepost.transfer.page_store import TransferError
from milepost.transfer.tier_copier import TierCopier
from milepost.types import Tier
from tests.transfer.gated_copier import transfer
from tests.transfer.small_disk import PAGE_BYTES, never, open_store, page_of, rows_of

ARENA, HOST, DISK = Tier.ARENA, Tier.HOST, Tier.DISK


@pytest.mark.parametrize(
    ("path", "kept_in"),
    [
        ((ARENA, HOST, ARENA), "host"),
        ((ARENA, HOST, DISK, ARENA), "disk"),
        ((ARENA, DISK, HOST, ARENA), "disk and host"),
    ],
)
def test_pages_go_round_the_tiers_unchanged(tmp_path: Path, path: tuple[Tier, ...], kept_in: str) -> None:
    arena, host = rows_of([1, 2, 3, 4]), rows_of([0] * 5)
    disk = open_store(tmp_path)
    tiers = TierCopier(arena, host, disk)
    places = (1, 3)
    new_places = {HOST: (4, 0), DISK: (0, 5), ARENA: (2, 3)}
    for source, target in itertools.pairwise(path):
        pages = zip(places, new_places[target], strict=True)
        tiers.copy(transfer(1, source, target, *pages, record=b"r"), never)
        if source is ARENA:
            arena[:] = 0
        places = new_places[target]
    assert [row.tobytes() for row in arena] == [bytes(PAGE_BYTES)] * 2 + [page_of(2), page_of(4)], kept_in
    disk.close()


@pytest.mark.parametrize(
    ("source", "target", "pages", "what"),
    [
        (ARENA, HOST, (0, 0), "no host tier"),
        (ARENA, DISK, (0, 0), "no disk tier"),
        (DISK, ARENA, (0, 0), "no disk tier"),
        (ARENA, ARENA, (0, 1), "both the arena tier"),
    ],
)
def test_a_tier_that_is_not_there_is_an_error(
    source: Tier, target: Tier, pages: tuple[int, int], what: str
) -> None:
    with pytest.raises(TransferError, match=what):
        TierCopier(rows_of([1, 2])).copy(transfer(1, source, target, pages), never)


@pytest.mark.parametrize("pages", [(-1, 0), (2, 0), (0, -1), (0, 2)])
@pytest.mark.parametrize("ends", [(ARENA, HOST), (HOST, ARENA)])
def test_page_numbers_outside_a_tier_copy_nothing(pages: tuple[int, int], ends: tuple[Tier, Tier]) -> None:
    arena, host = rows_of([1, 2]), rows_of([3, 4])
    with pytest.raises(TransferError, match=r"not in the (arena|host) tier of 2 pages"):
        TierCopier(arena, host).copy(transfer(1, *ends, (0, 0), pages), never)
    assert np.array_equal(arena, rows_of([1, 2]))
    assert np.array_equal(host, rows_of([3, 4]))


def test_a_copy_stops_between_pages() -> None:
    arena, host = rows_of([1, 2]), rows_of([0, 0])
    answers = iter([False, True])
    with pytest.raises(TransferError, match="stopped"):
        TierCopier(arena, host).copy(transfer(1, ARENA, HOST, (0, 0), (1, 1)), lambda: next(answers))
    assert np.array_equal(host, rows_of([1, 0]))


def test_tiers_of_different_page_sizes_are_a_bug() -> None:
    with pytest.raises(InvariantError, match="16 and 32 bytes"):
        TierCopier(rows_of([1]), rows_of([1], 32))
