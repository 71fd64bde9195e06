"""Options are words, which the half without torch checks; each must mean something to the other half."""

from __future__ import annotations

from milepost import config
from milepost.kernels import ops
from milepost.runtime.dtypes import torch_dtype


def test_every_dtype_option_is_a_dtype_of_the_size_that_pages_are_cut_by() -> None:
    sizes = {name: torch_dtype(name).itemsize for name in config.DTYPE_ITEMSIZE}
    assert sizes == config.DTYPE_ITEMSIZE


def test_every_kernels_option_can_be_loaded_and_the_other_way_round() -> None:
    assert sorted(config.KERNELS) == sorted(["auto", *ops.KERNELS])  # auto is one of the others, chosen
