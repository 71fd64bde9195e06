"""The prefix cache of an engine and the stores of the tiers behind its arena."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from pathlib import Path

import msgspec

from milepost import __version__
from milepost.byte_counts import format_bytes
from milepost.config import ResolvedCache, ResolvedConfig
from milepost.engine.executor import Executor
from milepost.errors import ConfigError
from milepost.memory.layout import TiledLayout
from milepost.memory.pool import PagePool
from milepost.prefix.cache import PrefixCache
from milepost.prefix.config import CacheConfig
from milepost.runtime.model_runner import ModelRunner
from milepost.transfer.disk_store import DiskStore
from milepost.transfer.host_store import HostStore
from milepost.transfer.tiered_executor import TieredExecutor

__all__ = ["CacheTiers", "open_cache"]

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class CacheTiers:
    """A prefix cache with its stores, open; whoever builds the engine hands them on or closes them.

    Attributes:
        cache: what the scheduler asks; None when it is off.
        host: the host tier's pages, or None.
        disk: the disk tier's pages, or None.
        notes: what the user should know at start, as of `ResolvedConfig.notes`.
    """

    cache: PrefixCache | None = None
    host: HostStore | None = None
    disk: DiskStore | None = None
    notes: tuple[str, ...] = ()

    def around(self, runner: ModelRunner) -> Executor:
        """`runner`, and where there are tiers an executor around it, which also closes the stores."""
        if self.host is None:
            return runner
        return TieredExecutor(runner, runner.arena.pages(), self.host, self.disk)

    def close(self) -> None:
        """Close the stores when no engine came of it."""
        for store in (self.host, self.disk):
            if store is not None:
                store.close()


def open_cache(config: ResolvedConfig, folder: Path, layout: TiledLayout, pool: PagePool) -> CacheTiers:
    """Build the prefix cache, open its tiers, and take over what an earlier process left on disk.

    Args:
        config: the engine's numbers.
        folder: the checkpoint's.
        layout: how states and KV lie in pages.
        pool: the arena's pages.

    Raises:
        ConfigError: an unknown policy, a tier too small for a page, or a folder that can't be used.
    """
    options = config.cache
    if options is None:
        return CacheTiers()
    if not options.host_bytes:
        return CacheTiers(cache=PrefixCache(_settings(options, options.secret), layout, pool))
    host_pages = _pages_within(options.host_bytes, layout.page_bytes, "host_cache")
    disk = _open_disk(config, options, folder, layout)
    try:
        secret = options.secret if disk is None or options.secret is not None else disk.secret
        cache = PrefixCache(_settings(options, secret), layout, pool)
        tiers = cache.add_tiers(host_pages, 0 if disk is None else disk.num_pages)
        if disk is not None:
            found = tiers.recover(disk.recover())
            if found:
                logger.info("Took over %d snapshots from the disk cache %s", found, disk.path)
        return CacheTiers(
            cache=cache, host=HostStore(host_pages, layout.page_bytes), disk=disk, notes=_notes(disk)
        )
    except BaseException:
        if disk is not None:
            disk.close()
        raise


def _settings(options: ResolvedCache, secret: bytes | None) -> CacheConfig:
    return CacheConfig(
        match_unit=options.match_unit,
        snapshot_policy=options.snapshot_policy,
        eviction=options.eviction,
        secret=secret,
        wait_for_leaders=options.wait_for_leaders,
    )


def _open_disk(
    config: ResolvedConfig, options: ResolvedCache, folder: Path, layout: TiledLayout
) -> DiskStore | None:
    if options.disk_path is None:
        return None
    return DiskStore(
        _folder(options.disk_path),
        _pages_within(options.disk_bytes, layout.page_bytes, "disk_cache"),
        layout.page_bytes,
        fingerprint=_fingerprint(config, folder, options.secret),
        layout=msgspec.json.encode([type(layout).__name__, layout, options.match_unit]),
    )


def _notes(disk: DiskStore | None) -> tuple[str, ...]:
    if disk is None or disk.discarded is None:
        return ()
    note = (
        f"The disk cache {disk.path} held what this engine can't use and begins empty: {disk.discarded}. "
        "Give each model and set of options a folder of its own to keep both."
    )
    return (note,)


def _folder(text: str) -> Path:
    """The disk cache's folder; a tilde is the home folder."""
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            f"disk_cache must lie in the home folder of a user whom this machine knows. Given: {text!r}. "
            "Write the folder out."
        ) from error


def _pages_within(num_bytes: int, page_bytes: int, option: str) -> int:
    num_pages = num_bytes // page_bytes
    if num_pages < 2:
        raise ConfigError(
            f"{option} must hold at least two pages of {format_bytes(page_bytes)}, one of them the dummy "
            f"page: {2 * page_bytes} bytes. Given: {num_bytes} bytes. Give it more, or leave it out."
        )
    return num_pages


def _fingerprint(config: ResolvedConfig, folder: Path, secret: bytes | None) -> bytes:
    """Of whatever decides the numbers in a page and their keys: checkpoint, dtypes, kernels, version, secret.

    Shards count by name, size and time of change: reading terabytes to hash them would take longer
    than the cache ever saves. A copied checkpoint starts with an empty cache.
    """
    digest = hashlib.blake2b(digest_size=32, key=secret or b"")
    dtypes = (config.dtype, config.kv_dtype, config.recurrent_dtype, config.weights)
    numbers = (__version__, *dtypes, config.kernels)
    digest.update(msgspec.json.encode(numbers))
    digest.update((folder / "config.json").read_bytes())
    for shard in sorted(folder.glob("*.safetensors")):
        status = shard.stat()
        digest.update(msgspec.json.encode((shard.name, status.st_size, status.st_mtime_ns)))
    return digest.digest()
