"""Checks of the page tables that a batch brings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from milepost.errors import InvariantError
from milepost.runtime.arena import Arena
from milepost.types import Row

__all__ = ["check_pages"]


def check_pages(rows: Sequence[Row], tables: NDArray[np.int64], arena: Arena) -> None:
    """Check that tables stay inside the arena.

    Args:
        rows: whose tables these are, for the message.
        tables: [rows, pages].
        arena: where the pages lie.

    Raises:
        InvariantError: some don't.
    """
    # A page outside the arena would read or write another page's bytes, or fault, much later.
    outside = (tables < 0) | (tables >= arena.num_pages)
    if outside.any():
        names = sorted({rows[index].request_id for index in outside.nonzero()[0].tolist()})
        raise InvariantError(f"Tables of {names} name pages outside the arena's {arena.num_pages}.")
