"""Choosing kernels by name, and the paging views."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from milepost.errors import ConfigError, InvariantError
from milepost.kernels.native import native
from milepost.kernels.ops import KERNELS, load_ops
from milepost.kernels.paging import PagedState, Ragged
from tests.kernels.arenas import ragged

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("name", KERNELS)
def test_every_version_has_every_op(name: str) -> None:
    ops = load_ops(name)
    for field in dataclasses.fields(ops):
        if field.name in {"name", "writer", "part"}:
            continue
        op = getattr(ops, field.name)
        assert op.__module__.startswith(f"milepost.kernels.{field.name}.{name}")


def test_versions_have_the_same_signatures() -> None:
    first, second = (load_ops(name) for name in KERNELS)
    for field in dataclasses.fields(first)[3:]:  # all but the name, the writer and the part
        assert inspect.signature(getattr(first, field.name)) == inspect.signature(getattr(second, field.name))


def test_an_unknown_name_is_an_error_with_the_nearest_match() -> None:
    with pytest.raises(ConfigError, match=r"Given: 'refrence'\. Did you mean 'reference'\?"):
        load_ops("refrence")
    with pytest.raises(ConfigError, match="must be one of reference, cpu"):
        load_ops("")


def test_the_reference_needs_no_compiler() -> None:
    code = "import sys; sys.modules['milepost.kernels.native._native'] = None\n"
    code += "from milepost.kernels.ops import load_ops\nload_ops('reference')"
    subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )


def test_the_stub_names_what_the_extension_offers_in_the_same_order() -> None:
    stub = ast.parse((ROOT / "milepost/kernels/native/_native.pyi").read_text(encoding="utf-8")).body
    offered = {name: entry for name, entry in vars(native).items() if not name.startswith("__")}
    constants = [ast.unparse(node.target) for node in stub if isinstance(node, ast.AnnAssign)]
    classes = [node.name for node in stub if isinstance(node, ast.ClassDef)]
    functions = [node.name for node in stub if isinstance(node, ast.FunctionDef)]
    assert constants == [name for name, entry in offered.items() if isinstance(entry, int)]
    assert classes == [name for name, entry in offered.items() if inspect.isclass(entry)]
    assert functions == [name for name, entry in offered.items() if inspect.isroutine(entry)]
    assert len(offered) == len(constants) + len(classes) + len(functions)


def test_ragged_derives_rows_and_positions() -> None:
    rows = ragged([2, 1, 3], [5, 0, 64])
    assert (rows.num_rows, rows.num_tokens) == (3, 6)
    assert rows.lengths().tolist() == [2, 1, 3]
    assert rows.row_ids().tolist() == [0, 0, 1, 2, 2, 2]
    assert rows.positions().tolist() == [5, 6, 0, 64, 65, 66]
    assert rows.positions() is rows.positions(), "derived once"


def test_ragged_refuses_what_does_not_fit() -> None:
    with pytest.raises(InvariantError, match="one number more"):
        Ragged(cu_seqlens=torch.tensor([0, 1]), starts=torch.tensor([0, 0]))
    with pytest.raises(InvariantError, match="must be int64"):
        Ragged(cu_seqlens=torch.tensor([0, 1], dtype=torch.int32), starts=torch.tensor([0]))
    with pytest.raises(InvariantError, match="at least one token"):
        _ = Ragged(cu_seqlens=torch.tensor([0, 1, 1]), starts=torch.tensor([0, 0])).offsets


def test_tiles_follow_the_state_table() -> None:
    tiles = torch.zeros(30, 1, 1)
    state = PagedState(
        recurrent=tiles, conv=tiles[:, 0], table=torch.tensor([[7, 2, 4], [1, 9, 3]]), tiles_per_page=3
    )
    assert state.tile_ids(2, 3).tolist() == [[23, 6, 7], [5, 27, 28]]
