"""Options: what is refused and how, and the numbers that the rest of the engine runs on."""

from __future__ import annotations

from pathlib import Path

import pytest

from milepost.config import EngineConfig, resolve
from milepost.errors import ConfigError
from milepost.machine import available_memory, format_bytes, parse_bytes, usable_cores
from milepost.memory.layout import PagedLayout, paged_layout
from milepost.model_spec import ModelSpec


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
    ],
)
def test_byte_counts_are_read_exactly(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "2G", "-1GiB", "GiB", "1e9", "2 GiB free", 0, True, None, 1.5])
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


def test_the_machine_has_memory_and_cores() -> None:
    assert available_memory() > 1 << 20
    assert usable_cores() >= 1


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
        ("device", "cuda"),
        ("dtype", "float16"),
        ("dtype", 32),
        ("kv_dtype", "fp8"),
        ("kernels", "triton"),
        ("memory", "lots"),
        ("block_size", 0),
        ("max_num_seqs", "4"),
        ("max_num_batched_tokens", True),
        ("max_model_len", 1),
        ("threads", 0),
        ("seed", 1 << 63),
        ("served_model_name", ""),
        ("check_states", "yes"),
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


def _layout(config: EngineConfig, spec: ModelSpec) -> PagedLayout:
    return paged_layout(spec, **config.layout_options())


def test_resolved_numbers(spec: ModelSpec, tmp_path: Path) -> None:
    config = EngineConfig.from_options(
        {"model": tmp_path / "toy", "memory": "1MiB", "block_size": 16, "max_num_seqs": 3, "threads": 2}
    )
    layout = _layout(config, spec)
    assert layout.page_bytes == 16 * 32 * 4
    resolved = resolve(config, spec, layout)
    assert resolved.num_pages == (1 << 20) // layout.page_bytes == 512
    assert resolved.memory_bytes == resolved.num_pages * layout.page_bytes
    assert resolved.max_sequence_tokens == (511 - layout.pages_per_state) * 16
    assert resolved.max_model_len == 4096  # the model's own limit is the lesser
    assert resolved.served_model_name == "toy"
    assert resolved.threads == 2


def test_the_arena_caps_the_length_of_a_sequence(spec: ModelSpec) -> None:
    config = EngineConfig(model="m", memory="100kB", block_size=16)
    layout = _layout(config, spec)
    resolved = resolve(config, spec, layout)
    assert resolved.num_pages == 48
    assert resolved.max_model_len == (47 - layout.pages_per_state) * 16 + 1 < 4096


def test_default_memory_is_a_share_and_no_more_than_is_of_use(spec: ModelSpec) -> None:
    config = EngineConfig(model="m", max_num_seqs=2, block_size=16)
    layout = _layout(config, spec)
    scarce = resolve(config, spec, layout, available_bytes=3 << 20, weight_bytes=1 << 20)
    assert scarce.num_pages == (1 << 20) // layout.page_bytes
    plenty = resolve(config, spec, layout, available_bytes=64 << 30)
    assert plenty.num_pages == 1 + 2 * (layout.pages_per_state + 4096 // 16)


def test_memory_for_less_than_one_sequence_states_the_need(spec: ModelSpec) -> None:
    config = EngineConfig(model="m", memory=4096, block_size=16)
    layout = _layout(config, spec)
    need = (2 + layout.pages_per_state) * layout.page_bytes
    with pytest.raises(ConfigError, match=f"{need} bytes.*Given: memory 4096.*Set memory to {need}"):
        resolve(config, spec, layout)
    assert resolve(EngineConfig(model="m", memory=need, block_size=16), spec, layout).max_model_len == 17


def test_memory_that_is_not_available_states_the_share(spec: ModelSpec) -> None:
    config = EngineConfig(model="m", block_size=16)
    with pytest.raises(ConfigError, match=r"Given: 1.0 KiB, 50% of the memory available"):
        resolve(config, spec, _layout(config, spec), available_bytes=2048)


def test_a_length_that_the_model_lacks_is_refused(spec: ModelSpec) -> None:
    config = EngineConfig(model="m", max_model_len=4097)
    with pytest.raises(ConfigError, match=r"max_model_len must be at most 4096.*Given: 4097"):
        resolve(config, spec, _layout(config, spec))


def test_a_length_that_the_arena_lacks_states_both_ways_out(spec: ModelSpec) -> None:
    config = EngineConfig(model="m", memory="100kB", block_size=16, max_model_len=2000)
    layout = _layout(config, spec)
    need = (1 + layout.pages_per_state + 125) * layout.page_bytes
    fits = (47 - layout.pages_per_state) * 16 + 1
    with pytest.raises(
        ConfigError, match=f"Set memory to {need} or more, or max_model_len to {fits} or less"
    ):
        resolve(config, spec, layout)
