"""Byte counts as people write them."""

from __future__ import annotations

import pytest

from milepost.byte_counts import format_bytes, parse_bytes
from milepost.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (4096, 4096),
        ("4096", 4096),
        ("2GiB", 2 << 30),
        ("512 MiB", 512 << 20),
        ("1.5gib", 3 << 29),
        ("2GB", 2 * 10**9),
        ("3 kB", 3000),
        ("2.01GB", 2_010_000_000),
        ("16.1 TB", 16_100_000_000_000),
        ("0.7kB", 700),
    ],
)
def test_byte_counts_are_read_exactly(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text", ["", "2G", "-1GiB", "GiB", "1e9", "2 GiB free", 0, True, None, 1.5, "9" * 5000, "0.1B"]
)
def test_a_wrong_byte_count_shows_the_form(text: object) -> None:
    with pytest.raises(ConfigError, match=r"2GiB or 512MiB.*Given: "):
        parse_bytes(text)  # type: ignore[arg-type]


def test_a_near_unit_is_suggested() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean 'GiB'"):
        parse_bytes("2Gi")


def test_round_figures_print_as_they_are_written() -> None:
    assert [format_bytes(n) for n in (7, 1 << 10, 3 << 19, 2 << 30)] == [
        "7 B",
        "1.0 KiB",
        "1.5 MiB",
        "2.0 GiB",
    ]
