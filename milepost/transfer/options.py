"""The tiers' sizes in pages."""

from __future__ import annotations

from milepost.byte_counts import format_bytes
from milepost.errors import ConfigError

__all__ = ["pages_within"]


def pages_within(num_bytes: int, page_bytes: int, option: str) -> int:
    """Pages of a tier that may take `num_bytes`.

    Raises:
        ConfigError: fewer than two: the tier's dummy page and one to use. `option` is named.
    """
    num_pages = num_bytes // page_bytes
    if num_pages < 2:
        raise ConfigError(
            f"{option} must hold at least two pages of {format_bytes(page_bytes)}, one of them the dummy "
            f"page: {2 * page_bytes} bytes. Given: {num_bytes} bytes. Give it more, or leave it out."
        )
    return num_pages
