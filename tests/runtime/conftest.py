"""Small models and layouts that the runtime's tests share."""

from __future__ import annotations

import pytest
import torch

from milepost.memory.layout import PagedLayout, paged_layout
from milepost.model_spec import ModelSpec
from tests.model_specs import SMALL

torch.set_num_threads(1)


@pytest.fixture(scope="session")
def spec() -> ModelSpec:
    """The small model."""
    return SMALL


@pytest.fixture(scope="session")
def layout(spec: ModelSpec) -> PagedLayout:
    """Pages of 16 tokens in float32."""
    return paged_layout(spec, block_size=16, kv_itemsize=4, conv_itemsize=4)
