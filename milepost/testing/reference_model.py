"""The reference model: Kimi K3 and Kimi-Linear in float64, one token at a time, from a checkpoint's files.

It is slow, plain and independent: it shares no code with `milepost.models` and `milepost.kernels`, which it
judges. KDA runs as its recurrence, MLA with every head's key and value written out, the experts in a loop,
and the banks of Attention Residuals are a list. Fit for small models only.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from milepost.testing.reference import maths
from milepost.testing.reference.files import CheckpointFiles
from milepost.testing.reference.layers import (
    DenseFfn,
    KdaLayer,
    KdaState,
    MlaLayer,
    MlaState,
    MoeFfn,
    Numerics,
    dense_ffn,
)
from milepost.testing.threads import single_thread

__all__ = ["Numerics", "ReferenceModel", "ReferenceState"]


@dataclasses.dataclass
class ReferenceState:
    """All that the model remembers of a sequence.

    Attributes:
        position: number of tokens read.
        layers: each layer's memory, a `KdaState` or an `MlaState`.
    """

    position: int
    layers: list[KdaState | MlaState]

    def copy(self) -> ReferenceState:
        """An independent copy: stepping one leaves the other as it was."""
        return ReferenceState(self.position, [layer.copy() for layer in self.layers])


@dataclasses.dataclass
class _Layer:
    attention: KdaLayer | MlaLayer
    ffn: DenseFfn | MoeFfn
    attention_norm: Tensor
    ffn_norm: Tensor
    # Score vectors of Attention Residuals; None without them.
    attention_res: Tensor | None
    ffn_res: Tensor | None


class ReferenceModel:
    """A loaded model; `load` makes one.

    Attributes:
        unread: names of the checkpoint's tensors that the model has no use for.
    """

    def __init__(self, files: CheckpointFiles, numerics: Numerics) -> None:
        self._numerics = numerics
        text = files.text
        self._eps: float = text["rms_norm_eps"]
        self._block: int | None = text.get("attn_res_block_size")
        self._embedding = files.tensor("model.embed_tokens.weight")
        self._layers = [self._load_layer(files, layer) for layer in range(text["num_hidden_layers"])]
        self._output_res = self._score_vector(files, "model.output_attn_res")
        self._norm = files.tensor("model.norm.weight")
        self._head = files.tensor("lm_head.weight")
        self.unread = frozenset(files.unread)

    @classmethod
    @single_thread()
    def load(
        cls,
        folder: str | os.PathLike[str],
        dtype: torch.dtype = torch.float64,
        numerics: Numerics | None = None,
    ) -> ReferenceModel:
        """Read a checkpoint folder.

        Args:
            folder: with config.json and safetensors files.
            dtype: of all arithmetic.
            numerics: choices in the last digits; Hugging Face's by default.
        """
        return cls(CheckpointFiles(folder, dtype), numerics or Numerics())

    def _load_layer(self, files: CheckpointFiles, layer: int) -> _Layer:
        prefix = f"model.layers.{layer}."
        text = files.text
        is_mla = layer + 1 in text["linear_attn_config"]["full_attn_layers"]  # the lists count from 1
        attention_class = MlaLayer if is_mla else KdaLayer
        is_moe = layer >= text["first_k_dense_replace"] and layer % text["moe_layer_freq"] == 0
        return _Layer(
            attention=attention_class(files, f"{prefix}self_attn.", layer, self._numerics),
            ffn=(
                MoeFfn(files, f"{prefix}block_sparse_moe.", layer, self._numerics)
                if is_moe
                else dense_ffn(files, f"{prefix}mlp.")
            ),
            attention_norm=files.tensor(f"{prefix}input_layernorm.weight"),
            ffn_norm=files.tensor(f"{prefix}post_attention_layernorm.weight"),
            # Nothing is banked before layer 0, so its own read is the identity and its weights are dead.
            attention_res=self._score_vector(files, f"{prefix}self_attention_res") if layer else None,
            ffn_res=self._score_vector(files, f"{prefix}mlp_res"),
        )

    def _score_vector(self, files: CheckpointFiles, site: str) -> Tensor | None:
        if self._block is None:
            return None
        return files.tensor(f"{site}_norm.weight") * files.tensor(f"{site}_proj.weight").squeeze(0)

    def fresh_state(self) -> ReferenceState:
        """The state before any token."""
        return ReferenceState(0, [layer.attention.fresh_state() for layer in self._layers])

    @single_thread()
    def step(self, token: int, state: ReferenceState) -> Tensor:
        """Read one token.

        Args:
            token: its id.
            state: changed in place; copy it first to come back.

        Returns:
            Logits of the next token, [vocab].
        """
        running: Tensor = self._embedding[token]
        banks: list[Tensor] = []
        for index, layer in enumerate(self._layers):
            x = self._read(banks, running, layer.attention_res, index)
            # A bank takes the raw sum, not the mix, and the sum starts anew from this layer's attention.
            starts_block = self._block is not None and index % self._block == 0
            if starts_block:
                banks.append(running)
            x = maths.rms_norm(x, layer.attention_norm, self._eps)
            attended = _attend(layer.attention, x, state.layers[index])
            running = attended if starts_block else running + attended
            x = self._read(banks, running, layer.ffn_res, index)
            running = running + layer.ffn(maths.rms_norm(x, layer.ffn_norm, self._eps))
        x = self._read(banks, running, self._output_res, len(self._layers))
        state.position += 1
        return self._head @ maths.rms_norm(x, self._norm, self._eps)

    def _read(self, banks: list[Tensor], running: Tensor, score_vector: Tensor | None, layer: int) -> Tensor:
        if score_vector is None:
            return running
        mixed, weights = maths.attention_residual(banks, running, score_vector, self._eps)
        self._numerics.tell("residual weights", layer, weights)
        return mixed

    def logits(self, token_ids: Sequence[int]) -> Tensor:
        """Read a whole sequence from the start.

        Returns:
            [tokens, vocab]: row t is about what follows token t.
        """
        state = self.fresh_state()
        return torch.stack([self.step(token, state) for token in token_ids])


def _attend(attention: KdaLayer | MlaLayer, x: Tensor, state: KdaState | MlaState) -> Tensor:
    if isinstance(attention, KdaLayer):
        assert isinstance(state, KdaState)
        return attention(x, state)
    assert isinstance(state, MlaState)
    return attention(x, state)
