"""One version of every op, chosen by name and handed to the models."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from milepost.errors import ConfigError
from milepost.kernels.add import Add
from milepost.kernels.attn_res import AttnRes
from milepost.kernels.embedding import Embedding
from milepost.kernels.finite_rows import FiniteRows
from milepost.kernels.gated_activation import GatedActivation
from milepost.kernels.gated_head_norm import GatedHeadNorm
from milepost.kernels.grouped_experts import GroupedExperts
from milepost.kernels.kda import Kda
from milepost.kernels.kda_gate import KdaGate
from milepost.kernels.linear import Linear
from milepost.kernels.matrix import MakeWriter
from milepost.kernels.mla_attention import MlaAttention
from milepost.kernels.mla_write import MlaWrite
from milepost.kernels.native import native, require_native
from milepost.kernels.rms_norm import RmsNorm
from milepost.kernels.route import Route
from milepost.kernels.short_conv import ShortConv
from milepost.kernels.take_rows import TakeRows

__all__ = ["KERNELS", "Ops", "load_ops"]

KERNELS = ("reference", "cpu")


@dataclass(frozen=True)
class Ops:
    """The ops that models are built from; each field's type documents its op.

    ``name`` says which version this is: "reference" (plain torch, written to be read) or "cpu". ``writer``
    starts a weight matrix in the order in which its kernels read it; None for the plain order. ``part`` says
    which part of a model the next ops belong to, for whoever times them.
    """

    name: str
    writer: MakeWriter | None
    part: Callable[[str], None]
    embedding: Embedding
    linear: Linear
    short_conv: ShortConv
    kda_gate: KdaGate
    kda: Kda
    gated_head_norm: GatedHeadNorm
    mla_write: MlaWrite
    mla_attention: MlaAttention
    rms_norm: RmsNorm
    gated_activation: GatedActivation
    attn_res: AttnRes
    add: Add
    take_rows: TakeRows
    finite_rows: FiniteRows
    route: Route
    grouped_experts: GroupedExperts

    def activation_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What activations of a model of `dtype` are in: the compiled kernels know float32 only."""
        return torch.float32 if self.name == "cpu" else dtype


def load_ops(name: str) -> Ops:
    """Load one version of every op.

    Args:
        name: one of `KERNELS`.

    Raises:
        ConfigError: no such version; names the nearest one.
    """
    if name == "cpu":
        require_native()
    if name not in KERNELS:
        nearest = difflib.get_close_matches(name, KERNELS, n=1, cutoff=0.0)[0]
        raise ConfigError(
            f"Unknown kernels: must be one of {', '.join(KERNELS)}. Given: {name!r}. "
            f"Did you mean {nearest!r}?"
        )
    return Ops(
        name=name,
        writer=_writer(name),
        part=_parts(name),
        embedding=_load("embedding", name),
        linear=_load("linear", name),
        short_conv=_load("short_conv", name),
        kda_gate=_load("kda_gate", name),
        kda=_load("kda", name),
        gated_head_norm=_load("gated_head_norm", name),
        mla_write=_load("mla_write", name),
        mla_attention=_load("mla_attention", name),
        rms_norm=_load("rms_norm", name),
        gated_activation=_load("gated_activation", name),
        attn_res=_load("attn_res", name),
        add=_load("add", name),
        take_rows=_load("take_rows", name),
        finite_rows=_load("finite_rows", name),
        route=_load("route", name),
        grouped_experts=_load("grouped_experts", name),
    )


def _writer(name: str) -> MakeWriter | None:
    if name == "reference":
        return None
    writer: MakeWriter = _load("native", "panel_writer", "PanelWriter")
    return writer


def _parts(name: str) -> Callable[[str], None]:
    return native.set_part if name == "cpu" else _untimed


def _untimed(part: str) -> None:
    """The reference isn't timed."""


def _load(op: str, name: str, function: str | None = None) -> Any:  # noqa: ANN401 - each field has a type of its own
    # Imported on demand: a version may need packages that the others don't.
    return getattr(importlib.import_module(f"milepost.kernels.{op}.{name}"), function or op)
