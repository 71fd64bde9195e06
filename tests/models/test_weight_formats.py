"""Formats of weight matrices: what each keeps and takes, and that both orders hold the same numbers."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from milepost.errors import CheckpointError, ConfigError
from milepost.kernels.matrix import DenseMatrix, Int8Matrix, MatrixFormat, Mxfp4Matrix
from milepost.kernels.native.packed import pack
from milepost.kernels.native.panel_writer import PanelWriter
from milepost.kernels.ops import KERNELS, load_ops
from milepost.models import Model, load_model, weight_bytes
from milepost.models.feed_forward import MixtureOfExperts
from milepost.models.int8 import quantize_int8
from milepost.models.plain_writer import PlainWriter
from milepost.models.shards import Checkpoint
from milepost.testing.reference_model import ReferenceModel
from milepost.testing.toy_checkpoint import write_toy_checkpoint
from tests.models.paged_batches import PagedBatches

CPU = torch.device("cpu")
FORMATS = [None, MatrixFormat.FLOAT32, MatrixFormat.BFLOAT16, MatrixFormat.INT8, MatrixFormat.MXFP4]
PANEL_FORMATS = [form for form in MatrixFormat if form is not MatrixFormat.FLOAT64]
TOKENS = [7, 300, 21, 5, 250, 0, 33, 90, 4, 4, 61]


@pytest.fixture(scope="module", params=["kimi_k3", "kimi_linear"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of bfloat16 and float32 tensors; K3's experts are packed, Kimi-Linear's can be."""
    width = 80 if request.param == "kimi_k3" else 96
    path = tmp_path_factory.mktemp("toy") / "model"
    return write_toy_checkpoint(path, request.param, num_layers=4, hidden_size=width)


def load(folder: Path, kernels: str, weights: MatrixFormat | None) -> Model:
    return load_model(folder, dtype=torch.float32, ops=load_ops(kernels), weights=weights)


def logits(model: Model) -> Tensor:
    torch.set_num_threads(1)
    return PagedBatches(model, [TOKENS]).run([{0: 7}, {0: 1}])[0]


def held_bytes(model: Model) -> int:
    """Bytes of all tensors that can be reached from a model, the tensors' shared memory once."""
    seen: set[int] = set()
    storages: dict[int, int] = {}
    todo: list[object] = [model]
    while todo:
        thing = todo.pop()
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        if isinstance(thing, Tensor):
            storages[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
        elif isinstance(thing, dict | list | tuple) or type(thing).__module__.startswith("milepost.models"):
            todo += gc.get_referents(thing)
        elif hasattr(thing, "num_bytes"):
            todo += vars(thing).values()
    return sum(storages.values())


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("weights", FORMATS)
def test_the_estimate_is_what_is_taken(folder: Path, kernels: str, weights: MatrixFormat | None) -> None:
    model = load(folder, kernels, weights)
    assert held_bytes(model) == model.num_bytes
    with_headers = weight_bytes(
        model.spec,
        dtype=torch.float32,
        ops=load_ops(kernels),
        weights=weights,
        checkpoint=Checkpoint(folder),
    )
    assert with_headers == model.num_bytes


@pytest.mark.parametrize("weights", FORMATS)
def test_both_orders_hold_the_same_numbers(folder: Path, weights: MatrixFormat | None) -> None:
    plain, panels = logits(load(folder, "reference", weights)), logits(load(folder, "cpu", weights))
    assert float((plain - panels).norm() / plain.norm()) < 1e-4


def test_weights_as_stored_cost_no_accuracy(folder: Path) -> None:
    exact = ReferenceModel.load(folder, dtype=torch.float64).logits(TOKENS)
    for kernels in KERNELS:
        served = logits(load(folder, kernels, None)).double()
        assert float((served - exact).norm() / exact.norm()) < 1e-5


def test_each_format_is_where_it_belongs(folder: Path) -> None:
    """The output head, the embedding, the router's gate and the experts, by what was asked for."""
    packed = "kimi_k3" in load(folder, "reference", None).spec.family.value
    wanted = {
        None: (torch.bfloat16, torch.bfloat16, DenseMatrix),
        MatrixFormat.FLOAT32: (torch.float32, torch.float32, DenseMatrix),
        MatrixFormat.BFLOAT16: (torch.bfloat16, torch.bfloat16, DenseMatrix),
        MatrixFormat.INT8: (torch.int8, torch.bfloat16, Int8Matrix),
        MatrixFormat.MXFP4: (torch.bfloat16, torch.bfloat16, Mxfp4Matrix),
    }
    for weights, (head, table, experts) in wanted.items():
        model = load(folder, "reference", weights)
        mixture = next(layer._mlp for layer in model._layers if isinstance(layer._mlp, MixtureOfExperts))
        stored = model._lm_head
        data = stored.values if isinstance(stored, Int8Matrix) else vars(stored)["weight"]
        assert data.dtype == head
        assert model._embedding.dtype == table
        assert isinstance(mixture._w1, Mxfp4Matrix if packed else experts)


@pytest.mark.parametrize("form", PANEL_FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_panels_are_written_as_whole_matrices_are_packed(form: MatrixFormat, dtype: torch.dtype) -> None:
    """Rows come in pieces that end anywhere; the lanes beyond the last output are zeros all the same."""
    shape = (2, 77, 96)
    rows = torch.randn(shape).to(dtype) * torch.rand(2, 77, 1) ** 8
    rows[0, 3], rows[1, 40, :32] = 0, 0
    rows = rows.to(dtype)
    plain, panels = PlainWriter(form, shape, CPU), PanelWriter(form, shape, CPU)
    for item in range(2):
        for first, end in ((0, 1), (33, 64), (1, 33), (64, 70), (70, 77)):
            for writer in (plain, panels):
                assert writer.write(item, first, rows[item, first:end])
    whole, written = pack(plain.finish()), panels.finish()
    assert torch.equal(written.data, whole.data)
    assert (written.scales is None) == (whole.scales is None)
    if written.scales is not None and whole.scales is not None:
        assert torch.equal(written.scales, whole.scales)


def test_packed_rows_are_written_as_whole_matrices_are_packed() -> None:
    shape = (3, 45, 64)
    codes = torch.randint(0, 256, (3, 45, 32), dtype=torch.uint8)
    scales = torch.randint(0, 256, (3, 45, 2), dtype=torch.uint8)
    writer = PanelWriter(MatrixFormat.MXFP4, shape, CPU)
    for item in range(3):
        for first, end in ((31, 45), (0, 31)):
            writer.write_scales(item, first, scales[item, first:end])
            writer.write_codes(item, first, codes[item, first:end])
    assert torch.equal(writer.finish().data, pack(Mxfp4Matrix(codes, scales)).data)


def test_int8_is_within_half_a_step() -> None:
    weight = torch.randn(40, 100) * torch.logspace(-30, 30, 40).unsqueeze(1)
    values, scale = quantize_int8(weight)
    assert int(values.abs().amax(dim=1).min()) == 127
    error = (values.double() * scale.double().unsqueeze(1) - weight.double()).abs()
    assert bool((error <= scale.double().unsqueeze(1) * 0.5001).all())


@pytest.mark.parametrize("value", [0.0, 1e-45, -1e-44, 5e-43, -2e-40])
def test_int8_of_next_to_nothing(value: float) -> None:
    """Where the scale vanishes in float32, so does the output; no NaN comes of it."""
    smallest = 1.4e-45
    for writer in (PlainWriter, PanelWriter):
        made = writer(MatrixFormat.INT8, (1, 3, 32), CPU)
        assert made.write(0, 0, torch.full((3, 32), value))
        restored = made.finish().dense(torch.float64)
        assert bool(((restored - value).abs() <= 127 * smallest / 2).all())


@pytest.mark.parametrize("weights", [MatrixFormat.INT8, MatrixFormat.MXFP4])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_integers_cannot_hold_is_refused_by_name(
    tmp_path: Path, kernels: str, weights: MatrixFormat, value: float
) -> None:
    folder = write_toy_checkpoint(tmp_path / "toy", "kimi_linear", num_layers=4, hidden_size=96, shards=1)
    (shard,) = folder.glob("*.safetensors")
    tensors = load_file(shard)
    name = next(name for name in tensors if ".experts.3.w2." in name)
    tensors[name][5, 11] = value
    save_file(tensors, shard)
    with pytest.raises(CheckpointError, match=f"{name} holds a NaN or an infinity"):
        load(folder, kernels, weights)
    load(folder, kernels, None)


def test_experts_that_cannot_be_packed_are_refused_before_loading(tmp_path: Path) -> None:
    folder = write_toy_checkpoint(
        tmp_path / "toy", "kimi_linear", num_layers=4, moe_intermediate=40, hidden_size=96
    )
    with pytest.raises(ConfigError, match=r"groups of 32 inputs, and this model's experts have 40 .*w2"):
        load(folder, "cpu", MatrixFormat.MXFP4)
