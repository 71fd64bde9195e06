from __future__ import annotations

from pathlib import Path

import pytest

from milepost.errors import ConfigError
from milepost.transfer.options import DiskCacheOption, pages_within, parse_disk_cache


@pytest.mark.parametrize(
    ("text", "path", "num_bytes"),
    [
        ("kept,20GiB", "kept", 20 << 30),
        ("a/b,1000", "a/b", 1000),
        ("with, comma , 1.5 MB", "with, comma", 1_500_000),
    ],
)
def test_a_disk_cache_is_a_folder_and_a_size(text: str, path: str, num_bytes: int) -> None:
    assert parse_disk_cache(text) == DiskCacheOption(Path(path), num_bytes)


def test_a_tilde_is_the_home_folder() -> None:
    assert parse_disk_cache("~/kept,1GiB").path == Path.home() / "kept"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "a folder and a size"),
        ("kept", "a folder and a size"),
        ("kept,", "a folder and a size"),
        (",1GiB", "a folder before the comma"),
        ("a\0b,1GiB", "a folder before the comma"),
        ("kept,lots", "a wrong size"),
        ("kept,0", "a wrong size"),
        ("1GiB,kept", "a wrong size"),
    ],
)
def test_anything_else_is_refused_with_the_form(text: str, what: str) -> None:
    with pytest.raises(ConfigError, match=what) as caught:
        parse_disk_cache(text)
    assert "PATH,SIZE" in str(caught.value)
    assert repr(text) in str(caught.value)


def test_a_wrong_unit_gets_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'GiB'"):
        parse_disk_cache("kept,20GiBi")


def test_a_budget_is_rounded_down_to_pages() -> None:
    assert pages_within(1000, 100, "host_cache") == 10
    assert pages_within(299, 100, "host_cache") == 2


def test_a_budget_below_two_pages_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"host_cache must hold at least two pages of 100 B.*200 bytes.*199"
    ):
        pages_within(199, 100, "host_cache")
