"""The reference's own reader of checkpoint folders: config.json, safetensors, MXFP4."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

__all__ = ["CheckpointFiles", "decode_mxfp4"]

_GROUP = 32


# A nibble is a sign bit above an index into eight magnitudes; the low nibble of a byte is the first of its
# two elements.
_MAGNITUDES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
_ELEMENTS = _MAGNITUDES + [-magnitude for magnitude in _MAGNITUDES]
_PAIR_OF_BYTE = torch.tensor(
    [[_ELEMENTS[byte % 16], _ELEMENTS[byte // 16]] for byte in range(256)], dtype=torch.float64
)
_SCALE_OF_BYTE = torch.tensor(
    [math.ldexp(1.0, byte - 127) for byte in range(255)] + [math.nan], dtype=torch.float64
)


def decode_mxfp4(packed: Tensor, scale: Tensor) -> Tensor:
    """Values of a packed weight.

    Args:
        packed: uint8 [out, in / 2].
        scale: uint8 [out, in / 32].

    Returns:
        float64 [out, in].
    """
    pairs = _PAIR_OF_BYTE[packed.long()]  # [out, in / 2, 2]
    factors = _SCALE_OF_BYTE[scale.long()]  # [out, in / 32]
    groups = pairs.reshape(packed.shape[0], -1, _GROUP)
    return (groups * factors[:, :, None]).reshape(packed.shape[0], -1)


class CheckpointFiles:
    """One checkpoint folder. Tensors are turned to one dtype when asked for.

    Attributes:
        text: config.json's text model: its ``text_config`` where it has one, else the whole.
        is_k3: whether the architecture is Kimi K3's.
        unread: names of the tensors that nobody asked for yet.
    """

    def __init__(self, folder: str | os.PathLike[str], dtype: torch.dtype) -> None:
        self._folder = Path(folder)
        self._dtype = dtype
        config: dict[str, Any] = json.loads((self._folder / "config.json").read_text(encoding="utf-8"))
        self.text: dict[str, Any] = config.get("text_config", config)
        self.is_k3 = config["architectures"] == ["KimiK3ForConditionalGeneration"]
        self._prefix = "language_model." if self.is_k3 else ""
        self._tensors: dict[str, Tensor] = {}
        for path in sorted(self._folder.glob("*.safetensors")):
            self._tensors.update(load_file(path))
        self.unread = set(self._tensors)

    def _raw(self, name: str) -> Tensor:
        self.unread.discard(name)
        return self._tensors[name]

    def has(self, name: str) -> bool:
        """Whether the text model has a tensor of this name (given without the family's prefix)."""
        return self._prefix + name in self._tensors

    def tensor(self, name: str) -> Tensor:
        """A plain tensor, given without the family's prefix."""
        return self._raw(self._prefix + name).to(self._dtype)

    def matrix(self, name: str) -> Tensor:
        """A weight matrix [out, in], packed (as ``_packed`` and ``_scale``) or plain."""
        if not self.has(f"{name}_packed"):
            return self.tensor(name)
        packed = self._raw(f"{self._prefix}{name}_packed")
        scale = self._raw(f"{self._prefix}{name}_scale")
        return decode_mxfp4(packed, scale).to(self._dtype)
