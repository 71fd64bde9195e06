"""Times and tokens as they are written on the command line, read alike by all of ``milepost plan``."""

from __future__ import annotations

import math
import re

from milepost.byte_counts import parse_bytes
from milepost.errors import ConfigError

__all__ = ["MOST_BARE_SECONDS", "bytes_a_second_of", "seconds_of", "tokens_of"]

MOST_BARE_SECONDS = {"--ttft": 600.0, "--tpot": 2.0}
"""Above it a number without a unit is more likely meant in milliseconds, and no limit that anyone sets."""

_TIMES = {"ms": 1e-3, "us": 1e-6, "s": 1.0}
_BITS = re.compile(r"([0-9.]+)\s*(?:([KMGT])b|([kmgtKMGT])(?:bit|bps))(?:/s|ps)?")
_TOKENS = {"k": 1 << 10, "m": 1 << 20}


def seconds_of(option: str, text: str) -> float:
    """Seconds out of text such as 2, 2s or 500ms.

    Raises:
        ConfigError: no time above 0, or a number without a unit that would be an absurd limit in seconds.
    """
    number, scale = text.strip().lower(), 0.0
    for unit, one in _TIMES.items():
        if number.endswith(unit):
            number, scale = number.removesuffix(unit), one
            break
    try:
        found = float(number) * (scale or 1.0)
    except ValueError:
        found = math.nan
    if not 0 < found < math.inf:  # also refuses NaN
        raise ConfigError(f"{option} must be a time above 0 such as 2, 2s or 500ms. Given: {text!r:.60}.")
    if not scale and found > MOST_BARE_SECONDS.get(option, math.inf):
        raise ConfigError(
            f"{option} without a unit is in seconds: write {found:g}ms, or {found:g}s if that is meant. "
            f"Given: {text!r:.60}."
        )
    return found


def bytes_a_second_of(option: str, text: str) -> float:
    """Bytes a second out of text such as 50GB or 50GB/s; of bits, as networks are sold: 400Gb, 400Gbit/s.

    Raises:
        ConfigError: no rate above 0.
    """
    try:
        if bits := _BITS.fullmatch(text.strip()):
            number, *prefix = bits.groups()
            return float(parse_bytes(f"{number}{''.join(filter(None, prefix))}B", name=option)) / 8
        return float(parse_bytes(text.removesuffix("/s"), name=option))
    except ConfigError:
        raise ConfigError(
            f"{option} must be bytes a second above 0, such as 50GB or 12.5GB/s, or bits, such as 400Gbit/s. "
            f"Given: {text!r:.60}."
        ) from None


def tokens_of(option: str, text: str) -> int:
    """Tokens as people write them: "8192", "128k" (of 1,024), "1M".

    Raises:
        ConfigError: no whole number above 0.
    """
    digits = text.strip().replace(",", "").replace("_", "")
    factor = _TOKENS.get(digits[-1:].lower(), 1)
    number = digits[:-1] if factor > 1 else digits
    if not (number.isascii() and number.isdigit() and len(number) <= 12 and int(number)):
        raise ConfigError(
            f"{option} must be tokens, such as 8192, 128k (of 1,024) or 1M. Given: {text!r:.60}."
        )
    return int(number) * factor
