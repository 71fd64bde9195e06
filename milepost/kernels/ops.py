"""One version of every op, chosen by name and handed to the models."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from milepost.errors import ConfigError
from milepost.kernels.attn_res import AttnRes
from milepost.kernels.gated_activation import GatedActivation
from milepost.kernels.gated_head_norm import GatedHeadNorm
from milepost.kernels.grouped_experts import GroupedExperts
from milepost.kernels.kda import Kda
from milepost.kernels.kda_gate import KdaGate
from milepost.kernels.linear import Linear
from milepost.kernels.matrix import Matrix
from milepost.kernels.mla_attention import MlaAttention
from milepost.kernels.mla_write import MlaWrite
from milepost.kernels.native import require_native
from milepost.kernels.rms_norm import RmsNorm
from milepost.kernels.route import Route
from milepost.kernels.short_conv import ShortConv

__all__ = ["KERNELS", "Ops", "load_ops"]

KERNELS = ("reference", "cpu")


@dataclass(frozen=True)
class Ops:
    """The ops that models are built from; each field's type documents its op.

    ``name`` says which version this is: "reference" (plain torch, written to be read) or "cpu". ``pack``
    brings a weight matrix into the order in which its kernels read it.
    """

    name: str
    pack: Callable[[Matrix], Matrix]
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
    route: Route
    grouped_experts: GroupedExperts


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
        pack=_packing(name),
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
        route=_load("route", name),
        grouped_experts=_load("grouped_experts", name),
    )


def _packing(name: str) -> Callable[[Matrix], Matrix]:
    if name == "reference":
        return lambda matrix: matrix
    packed: Callable[[Matrix], Matrix] = _load("native", "packed", "pack")
    return packed


def _load(op: str, name: str, function: str | None = None) -> Any:  # noqa: ANN401 - each field has a type of its own
    # Imported on demand: a version may need packages that the others don't.
    return getattr(importlib.import_module(f"milepost.kernels.{op}.{name}"), function or op)
