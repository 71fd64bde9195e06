"""The prefix cache's settings."""

from __future__ import annotations

import msgspec

from milepost.errors import ConfigError

__all__ = ["CacheConfig"]


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the prefix cache works; checked when built, policies when they are parsed.

    Attributes:
        match_unit: tokens between full keys.
        snapshot_policy: where snapshots stand, such as ``turns+branch+every(8192)``.
        eviction: what goes first: ``lru``, ``marconi(alpha=0)`` or ``value``.
        secret: key of the hash that names prefixes, 16 to 64 bytes; None draws one for this process.
        wait_for_leaders: whether a request waits for a snapshot that a running one is about to leave.

    Raises:
        ConfigError: a value is outside its range.
    """

    match_unit: int = 16
    snapshot_policy: str = "adaptive"
    eviction: str = "value"
    secret: bytes | None = None
    wait_for_leaders: bool = True

    def __post_init__(self) -> None:
        if self.match_unit < 1:
            raise ConfigError(f"match_unit must be at least 1. Given: {self.match_unit}.")
        if self.secret is not None and not 16 <= len(self.secret) <= 64:
            raise ConfigError(f"The cache's secret must be 16 to 64 bytes. Given: {len(self.secret)}.")
