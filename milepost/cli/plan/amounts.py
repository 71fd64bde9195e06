"""Amounts as people write them on a command line: times and counts of tokens."""

from __future__ import annotations

from milepost.errors import ConfigError

__all__ = ["parse_seconds", "parse_tokens"]

_SECONDS = {"ms": 1e-3, "us": 1e-6, "s": 1.0}
_TOKENS = {"k": 1 << 10, "m": 1 << 20}
_MOST_DIGITS = 12


def parse_seconds(option: str, text: str) -> float:
    """Seconds out of text such as 2, 2s or 500ms.

    Raises:
        ConfigError: no time above 0.
    """
    number, scale = text.strip().lower(), 1.0
    for unit, one in _SECONDS.items():
        if number.endswith(unit):
            number, scale = number.removesuffix(unit), one
            break
    try:
        found = float(number) * scale
    except ValueError:
        found = 0.0
    if not found > 0:  # also refuses NaN
        raise ConfigError(f"{option} must be a time above 0 such as 2, 2s or 500ms. Given: {text!r:.60}.")
    return found


def parse_tokens(option: str, text: str) -> int:
    """Tokens out of text such as 8192, 128k (of 1,024) or 1M.

    Raises:
        ConfigError: no whole number above 0.
    """
    digits = text.strip().replace(",", "").replace("_", "")
    factor = _TOKENS.get(digits[-1:].lower(), 1)
    number = digits[:-1] if factor > 1 else digits
    if not (number.isascii() and number.isdigit() and len(number) <= _MOST_DIGITS and int(number)):
        raise ConfigError(
            f"{option} must be tokens, such as 8192, 128k (of 1,024) or 1M. Given: {text!r:.60}."
        )
    return int(number) * factor
