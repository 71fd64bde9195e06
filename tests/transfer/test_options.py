from __future__ import annotations

import pytest

from milepost.errors import ConfigError
from milepost.transfer.options import pages_within


def test_a_budget_is_rounded_down_to_pages() -> None:
    assert pages_within(1000, 100, "host_cache") == 10
    assert pages_within(299, 100, "host_cache") == 2


def test_a_budget_below_two_pages_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"host_cache must hold at least two pages of 100 B.*200 bytes.*199"
    ):
        pages_within(199, 100, "host_cache")
