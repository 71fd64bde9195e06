"""A layout by the name that the options give it."""

from __future__ import annotations

from milepost.config import LAYOUTS
from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.memory.aligned import aligned_layout
from milepost.memory.layout import RECURRENT_ITEMSIZE, Layout, TiledLayout, paged_layout
from milepost.memory.lcm import lcm_layout
from milepost.model_spec import ModelSpec
from milepost.shapes.shape import ModelShape

__all__ = ["SIMULATED_LAYOUTS", "named_layout", "simulated_layout"]

SIMULATED_LAYOUTS = (*LAYOUTS, "lcm")
"""Every layout that the simulator and the planner know; the engine's are `milepost.config.LAYOUTS`."""


def named_layout(
    name: str,
    model: ModelSpec | ModelShape,
    *,
    block_size: int,
    kv_itemsize: int = 2,
    conv_itemsize: int = 2,
    recurrent_itemsize: int = RECURRENT_ITEMSIZE,
    tensor_parallel: int = 1,
) -> TiledLayout:
    """Lay a model out in pages.

    Args:
        name: "paged" or "aligned".
        model: what the engine runs, or the numbers of any other.
        block_size: tokens of a KV block; on ``aligned`` the steps in which the block grows, since the
            block that a kernel takes at a time is what it must stay a multiple of.
        kv_itemsize: bytes of a cached KV element.
        conv_itemsize: bytes of a convolution window's element.
        recurrent_itemsize: bytes of an element of the recurrent matrices.
        tensor_parallel: ranks that share the heads.

    Raises:
        ConfigError: an unknown name, or sizes that can't be laid out.
    """
    sizes = {
        "kv_itemsize": kv_itemsize,
        "conv_itemsize": conv_itemsize,
        "recurrent_itemsize": recurrent_itemsize,
        "tensor_parallel": tensor_parallel,
    }
    if name == "paged":
        return paged_layout(model, block_size=block_size, **sizes)
    if name == "aligned":
        return aligned_layout(model, kernel_alignment=block_size, **sizes)
    raise ConfigError(one_of("layout", name, LAYOUTS))


def simulated_layout(
    name: str,
    model: ModelSpec | ModelShape,
    *,
    block_size: int,
    kv_itemsize: int = 2,
    conv_itemsize: int = 2,
    recurrent_itemsize: int = RECURRENT_ITEMSIZE,
    tensor_parallel: int = 1,
) -> Layout:
    """As `named_layout`, and ``lcm``, which no kernel reads.

    Raises:
        ConfigError: an unknown name, or sizes that can't be laid out.
    """
    sizes = {
        "block_size": block_size,
        "kv_itemsize": kv_itemsize,
        "conv_itemsize": conv_itemsize,
        "recurrent_itemsize": recurrent_itemsize,
        "tensor_parallel": tensor_parallel,
    }
    if name not in SIMULATED_LAYOUTS:
        raise ConfigError(one_of("layout", name, SIMULATED_LAYOUTS))
    return lcm_layout(model, **sizes) if name == "lcm" else named_layout(name, model, **sizes)
