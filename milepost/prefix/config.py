"""The prefix cache's settings."""

from __future__ import annotations

import msgspec

__all__ = ["CacheConfig"]


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the prefix cache works; checked by those who take the values, as soon as a cache is built.

    Attributes:
        match_unit: tokens between full keys.
        snapshot_policy: where snapshots stand, such as ``turns+branch+every(8192)``.
        eviction: what goes first: ``lru``, ``marconi(alpha=0)`` or ``value``.
        secret: key of the hash that names prefixes, 16 to 64 bytes; None draws one for this process.
        wait_for_leaders: whether a request waits for a snapshot that a running one is about to leave.
    """

    match_unit: int = 16
    snapshot_policy: str = "adaptive"
    eviction: str = "value"
    secret: bytes | None = None
    wait_for_leaders: bool = True
