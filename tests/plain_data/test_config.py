"""Options: what is refused and how."""

from __future__ import annotations

import pytest

from milepost.config import EngineConfig, ResolvedCache
from milepost.errors import ConfigError


def test_an_unknown_option_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'max_num_seq'. Did you mean 'max_num_seqs'"):
        EngineConfig.from_options({"model": "m", "max_num_seq": 3})


def test_an_unknown_value_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Given: 'bfloat'. Did you mean 'bfloat16'"):
        EngineConfig.from_options({"model": "m", "dtype": "bfloat"})


def test_the_model_is_required() -> None:
    with pytest.raises(ConfigError, match=r"'model' is missing"):
        EngineConfig.from_options({"seed": 1})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model", ""),
        ("dtype", "float16"),
        ("dtype", 32),
        ("kv_dtype", "fp8"),
        ("kernels", "triton"),
        ("weights", "float16"),
        ("weights", None),
        ("layout", "lcm"),
        ("memory", "lots"),
        ("block_size", 0),
        ("max_num_seqs", "4"),
        ("max_num_batched_tokens", True),
        ("max_model_len", 1),
        ("threads", 0),
        ("threads", 100_000),
        ("served_model_name", "a\udcff"),
        ("seed", 1 << 63),
        ("served_model_name", ""),
        ("check_states", "yes"),
        ("prefix_cache", 1),
        ("wait_for_leaders", None),
        ("match_unit", 0),
        ("match_unit", "blocks"),
        ("match_unit", 1.5),
        ("match_unit", True),
        ("snapshot_policy", ""),
        ("eviction", 3),
        ("host_cache", "4Gib of it"),
        ("host_cache", 0),
        ("disk_cache", "cache"),
        ("disk_cache", ",20GiB"),
        ("disk_cache", "cache,"),
        ("disk_cache", "a\0b,1GiB"),
        ("disk_cache", 20),
        ("cache_key", "abc"),
        ("cache_key", "zz" * 16),
        ("cache_key", "00" * 65),
        ("cache_key", b"0123456789abcdef"),
    ],
)
def test_a_wrong_value_is_refused_by_name(name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name} must be .*Given: "):
        EngineConfig.from_options({"model": "m", name: value})


@pytest.mark.parametrize(
    ("options", "dtypes"),
    [
        ({}, ("float32", "float32", "float32")),
        ({"dtype": "bfloat16"}, ("bfloat16", "bfloat16", "float32")),
        ({"dtype": "float32", "kv_dtype": "bfloat16"}, ("float32", "bfloat16", "float32")),
        ({"dtype": "float64"}, ("float64", "float64", "float64")),
    ],
)
def test_auto_dtypes_follow_the_model(options: dict[str, str], dtypes: tuple[str, str, str]) -> None:
    config = EngineConfig.from_options({"model": "m", **options})
    assert (config.resolved_dtype, config.resolved_kv_dtype, config.resolved_recurrent_dtype) == dtypes


@pytest.mark.parametrize("options", [{"dtype": "float64"}, {"kv_dtype": "float64", "dtype": "float32"}])
def test_compiled_kernels_refuse_float64(options: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"kernels cpu compute in float32.*Choose kernels reference"):
        EngineConfig.from_options({"model": "m", "kernels": "cpu", **options})
    assert EngineConfig.from_options({"model": "m", **options}).wants_float64
    assert EngineConfig.from_options({"model": "m", "kernels": "reference", **options}).wants_float64
    assert not EngineConfig(model="m", dtype="bfloat16").wants_float64


def cache_of(block_size: int = 64, **options: object) -> ResolvedCache:
    cache = EngineConfig.from_options({"model": "m", **options}).resolved_cache(block_size)
    assert cache is not None
    return cache


def test_the_cache_is_on_by_default_and_lies_in_the_arena_alone() -> None:
    cache = cache_of()
    assert (cache.match_unit, cache.snapshot_policy, cache.eviction) == (16, "adaptive", "value")
    assert (cache.host_bytes, cache.disk_path, cache.disk_bytes, cache.secret) == (0, None, 0, None)
    assert cache.wait_for_leaders


def test_a_match_unit_of_a_block_is_the_block_of_the_layout_in_use() -> None:
    assert cache_of(1728, match_unit="block").match_unit == 1728
    assert cache_of(1728, match_unit=24).match_unit == 24


@pytest.mark.parametrize(
    ("text", "path", "size"),
    [
        ("cache,20GiB", "cache", 20 << 30),
        ("a,b/cache, 1 MB", "a,b/cache", 10**6),
        ("/var/mileposts,4096", "/var/mileposts", 4096),
    ],
)
def test_a_disk_cache_is_a_folder_and_a_size(text: str, path: str, size: int) -> None:
    cache = cache_of(disk_cache=text, host_cache="1MiB")
    assert (cache.disk_path, cache.disk_bytes) == (path, size)


def test_a_size_that_cannot_be_read_names_its_own_option() -> None:
    with pytest.raises(ConfigError, match=r"disk_cache's size must be .*Given: '20GiBs'.*'GiB'"):
        EngineConfig(model="m", disk_cache="cache,20GiBs")


def test_sizes_and_the_key_are_resolved() -> None:
    cache = cache_of(host_cache="4GiB", cache_key="00ff" * 8, wait_for_leaders=False)
    assert (cache.host_bytes, cache.secret, cache.wait_for_leaders) == (4 << 30, b"\x00\xff" * 8, False)


def test_a_wrong_key_is_not_repeated_in_the_error() -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(model="m", cache_key="5ecret-5ecret")
    assert "5ecret" not in str(caught.value)


def test_a_tier_behind_a_cache_that_is_off_is_refused() -> None:
    with pytest.raises(ConfigError, match="host_cache must be left out when prefix_cache is off"):
        EngineConfig(model="m", prefix_cache=False, host_cache="1GiB", disk_cache="cache,1GiB")


def test_a_disk_without_a_host_tier_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"disk_cache needs host_cache.*'cache,1GiB' alone"):
        EngineConfig(model="m", disk_cache="cache,1GiB")


def test_off_is_no_cache() -> None:
    assert EngineConfig(model="m", prefix_cache=False).resolved_cache(64) is None
