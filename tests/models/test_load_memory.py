"""Peak memory of loading, measured from outside: the weights, 10 % and 200 MB are the limit."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from milepost.models.checkpoint_writer import write_checkpoint
from milepost.testing.toy_config import toy_kimi_linear_config
from milepost.testing.toy_weights import toy_tensors

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads Linux's /proc")

MB = 1_000_000
# VmHWM is the peak of this process alone: ru_maxrss starts from the peak of the process that forked it.
MEASURE = """
import json, re, sys
from pathlib import Path
import torch
from milepost.kernels.matrix import MatrixFormat
from milepost.kernels.ops import load_ops
from milepost.models import load_model
torch.set_num_threads(1)
ops, weights = load_ops(sys.argv[2]), MatrixFormat(sys.argv[3])
def status(field):
    return 1024 * int(re.search(field + r":\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = status("VmRSS")
model = load_model(Path(sys.argv[1]), dtype=torch.float32, ops=ops, weights=weights)
print(json.dumps({"weights": model.num_bytes, "used": status("VmHWM") - before}))
"""


@pytest.fixture(scope="module", params=["bfloat16", "float32"])
def large(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some 80 M parameters, most of them in matrices far larger than the staging buffer, in two shards."""
    config = toy_kimi_linear_config(
        base_vocab=60_000,
        hidden_size=512,
        dense_intermediate=4096,
        num_layers=2,
        moe_intermediate=256,
        num_experts=12,
    )
    tensors = toy_tensors(config, seed=0, dtype=getattr(torch, request.param))
    return write_checkpoint(tmp_path_factory.mktemp("large") / "model", config, tensors, shards=2)


@pytest.mark.parametrize(
    ("kernels", "weights"),
    [
        ("reference", "float32"),
        ("reference", "bfloat16"),
        ("cpu", "float32"),
        ("cpu", "int8"),
        ("cpu", "mxfp4"),
    ],
)
def test_peak_memory(large: Path, kernels: str, weights: str) -> None:
    command = [sys.executable, "-c", MEASURE, str(large), kernels, weights]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    measured = json.loads(done.stdout)
    on_disk = sum(shard.stat().st_size for shard in large.glob("*.safetensors"))
    assert measured["weights"] > 50 * MB
    assert on_disk > 100 * MB
    assert measured["used"] <= 1.1 * measured["weights"] + 200 * MB
    # What the loader promises itself is less: a mapped shard that stays resident would break it.
    assert measured["used"] <= 1.1 * measured["weights"] + 40 * MB
