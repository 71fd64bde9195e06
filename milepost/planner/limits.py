"""What numbers of a question may be."""

from __future__ import annotations

from milepost.errors import ConfigError

__all__ = ["check_within"]


def check_within(name: str, value: int, least: int, most: int) -> None:
    """Refuse a number outside its range.

    Raises:
        ConfigError: with the range.
    """
    if not least <= value <= most:
        raise ConfigError(f"{name} must be {least:,} to {most:,}. Given: {value:,}.")
