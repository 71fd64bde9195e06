"""Options: what is refused and how."""

from __future__ import annotations

import pytest

from milepost.config import EngineConfig
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
