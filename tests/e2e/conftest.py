"""Toy checkpoints of both families and what each request draws when it is served alone."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, cast

import pytest
import torch

from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.e2e.engines import Toy, load_toy, run_alone, sixteen_requests

# Few layers, but every kind: two MLA layers at K3's end, a dense and several MoE layers, two
# Attention Residuals banks before the last read.
SIZES = {"kimi_k3": {"num_layers": 5, "attn_res_block": 2}, "kimi_linear": {"num_layers": 4}}

Family = Literal["kimi_k3", "kimi_linear"]


@pytest.fixture(scope="session", params=["kimi_k3", "kimi_linear"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random checkpoint of each family."""
    family = cast("Family", request.param)
    path = tmp_path_factory.mktemp("toy") / family
    return write_toy_checkpoint(path, family, 0, dtype=torch.float32, **SIZES[family])


@pytest.fixture(scope="session")
def toy(folder: Path) -> Toy:
    """The model that the engine runs: float32, the CPU kernels."""
    return load_toy(folder, "cpu")


@pytest.fixture(scope="session")
def alone(toy: Toy) -> dict[str, list[int]]:
    """Greedy tokens of each of the sixteen requests, served alone."""
    return {request.request_id: run_alone(toy, request).tokens for request in sixteen_requests(toy)}
