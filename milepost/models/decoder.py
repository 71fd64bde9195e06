"""The decoder of both families: one stack of layers, driven by `ModelSpec`."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding

from milepost.kernels.finite import finite_rows
from milepost.kernels.ops import Ops
from milepost.kernels.paging import Ragged
from milepost.model_spec import LayerKind, ModelSpec
from milepost.models.feed_forward import build_feed_forward
from milepost.models.inputs import StepInputs
from milepost.models.kda_layer import KdaLayer
from milepost.models.mla_layer import MlaLayer
from milepost.models.outputs import StepOutput
from milepost.models.residual import ResidualRead, ResidualStream
from milepost.models.weights import WeightReader

__all__ = ["Model"]


class Model:
    """A language model whose states and KV live in pages that the caller owns.

    Args:
        spec: what the model is made of.
        reader: of the checkpoint's names, from the top.
        ops: the kernels.

    Attributes:
        dtype: of activations and of most weights.
        num_bytes: bytes of all weights in memory.
    """

    def __init__(self, spec: ModelSpec, reader: WeightReader, ops: Ops) -> None:
        self.spec = spec
        self.dtype = reader.dtype
        self._ops = ops
        self._wide = reader.wide
        text = reader.scope(spec.weight_prefix)
        body = text.scope("model.")
        self._embedding = body.tensor("embed_tokens.weight", spec.vocab_size, spec.hidden_size)
        self._layers = [
            _Layer(spec, index, body.scope(f"layers.{index}."), ops) for index in range(len(spec.layers))
        ]
        site = None if spec.attn_res_block is None else "output_attn_res"
        self._read = ResidualRead(site, spec.hidden_size, spec.norm_eps, body, ops)
        self._norm = body.tensor("norm.weight", spec.hidden_size, dtype=reader.wide)
        self._lm_head = text.matrix("lm_head.weight", spec.vocab_size, spec.hidden_size)
        self.num_bytes = reader.num_bytes

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> StepOutput:
        """Run one step over a ragged batch; states and KV are advanced in place."""
        stream = ResidualStream(embedding(inputs.token_ids, self._embedding))
        for layer in self._layers:
            layer.forward(stream, inputs)
        x = self._read.forward(stream.take(inputs.sample_index))  # [samples, hidden]
        x = self._ops.rms_norm(x, self._norm, self.spec.norm_eps)
        logits = self._ops.linear(x, self._lm_head).to(self._wide)
        return StepOutput(logits=logits, finite=_finite_rows(stream, inputs.ragged))


def _finite_rows(stream: ResidualStream, ragged: Ragged) -> Tensor:
    """Rows of which all tokens left the last layer finite, and so their KV and states too: [rows] bool.

    A NaN anywhere in a token's layers stays visible in its running sum. Sums, products, norms and a
    softmax over scores pass it on, and a banked sum is read again by every later site. What is cached
    is read by the very step that writes it: a token attends to its own KV row, so a NaN row makes its
    score NaN, and KDA's output o = S^T q reads all of the updated state (0 * NaN is NaN too). Infinities
    turn into NaN in the next norm (inf * 0). Two ways around remain, both at values near float32's
    limit, 3e38: an infinite k_pe whose scores are -inf in every head, and a state that overflows in
    the last update only. The runner looks at the snapshots themselves for the second.
    """
    running = stream.banks[-1] if stream.running is None else stream.running  # [tokens, hidden]
    finite = finite_rows(running)  # [tokens]
    if ragged.num_rows == ragged.num_tokens:
        return finite
    rows = torch.ones(ragged.num_rows, dtype=torch.bool, device=finite.device)
    rows[ragged.row_ids()[~finite]] = False
    return rows


class _Layer:
    """A token mixer and a feed-forward network, each behind its norm and its read of the stream."""

    def __init__(self, spec: ModelSpec, index: int, reader: WeightReader, ops: Ops) -> None:
        hidden, block = spec.hidden_size, spec.attn_res_block
        self._ops = ops
        self._eps = spec.norm_eps
        self._banks = block is not None and index % block == 0
        mixer_site, mlp_site = (None, None) if block is None else ("self_attention_res", "mlp_res")
        self._mixer_read = ResidualRead(mixer_site, hidden, spec.norm_eps, reader, ops)
        self._mixer_norm = reader.tensor("input_layernorm.weight", hidden, dtype=reader.wide)
        self._mixer = _mixer(spec, index, reader.scope("self_attn."), ops)
        self._mlp_read = ResidualRead(mlp_site, hidden, spec.norm_eps, reader, ops)
        self._mlp_norm = reader.tensor("post_attention_layernorm.weight", hidden, dtype=reader.wide)
        self._mlp = build_feed_forward(spec, index, reader, ops)

    def forward(self, stream: ResidualStream, inputs: StepInputs) -> None:
        """Advance the stream by this layer."""
        x = self._mixer_read.forward(stream)
        if self._banks:  # after the read: a layer that opens a block still reads the sum it banks
            stream.bank()
        stream.add(self._mixer.forward(self._ops.rms_norm(x, self._mixer_norm, self._eps), inputs))
        x = self._mlp_read.forward(stream)
        stream.add(self._mlp.forward(self._ops.rms_norm(x, self._mlp_norm, self._eps)))


def _mixer(spec: ModelSpec, index: int, reader: WeightReader, ops: Ops) -> KdaLayer | MlaLayer:
    kind = spec.layers[index]
    place = spec.layers[:index].count(kind)  # number of this layer among those of its kind
    if kind is LayerKind.KDA:
        return KdaLayer(spec, place, reader, ops)
    return MlaLayer(spec, place, reader, ops)
