"""The tiers' options as people write them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from milepost.byte_counts import format_bytes, parse_bytes
from milepost.errors import ConfigError

__all__ = ["DiskCacheOption", "pages_within", "parse_disk_cache"]

_FORM = 'It is written "PATH,SIZE", such as "kept/milepost,20GiB".'


class DiskCacheOption(msgspec.Struct, frozen=True):
    """Where the disk cache lies and how many bytes its pages may take."""

    path: Path
    num_bytes: int


def parse_disk_cache(text: str) -> DiskCacheOption:
    """Read ``PATH,SIZE``: the folder, and the bytes of its pages (the last comma parts them).

    The journal beside the pages takes some 50 bytes a page more.

    Raises:
        ConfigError: no folder, no size, or a size that is none; the message shows the form.
    """
    folder, comma, size = text.rpartition(",")
    if not comma or not size.strip():
        raise ConfigError(f"disk_cache must name a folder and a size. {_FORM} Given: {text!r}.")
    if not folder.strip() or "\0" in folder:
        raise ConfigError(f"disk_cache must name a folder before the comma. {_FORM} Given: {text!r}.")
    try:
        num_bytes = parse_bytes(size)
    except ConfigError as error:
        raise ConfigError(f"disk_cache has a wrong size. {_FORM} Given: {text!r}. {error}") from error
    return DiskCacheOption(Path(folder.strip()).expanduser(), num_bytes)


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
