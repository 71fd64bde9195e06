"""The decoder of both families: one stack of layers, driven by `ModelSpec`."""

from __future__ import annotations

import torch

from milepost.kernels.ops import Ops
from milepost.model_spec import LayerKind, ModelSpec
from milepost.models import parts
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
        dtype: of activations.
        num_bytes: bytes of all weights in memory.
    """

    def __init__(self, spec: ModelSpec, reader: WeightReader, ops: Ops) -> None:
        self.spec = spec
        self.dtype = reader.dtype
        self._ops = ops
        self._wide = reader.wide
        text = reader.scope(spec.weight_prefix)
        body = text.scope("model.")
        self._embedding = body.table("embed_tokens.weight", spec.vocab_size, spec.hidden_size)
        self._layers = [
            _Layer(spec, index, body.scope(f"layers.{index}."), ops) for index in range(len(spec.layers))
        ]
        site = None if spec.attn_res_block is None else "output_attn_res"
        self._read = ResidualRead(site, "norm.weight", spec.hidden_size, spec.norm_eps, body, ops)
        self._lm_head = text.matrix("lm_head.weight", spec.vocab_size, spec.hidden_size)
        self.num_bytes = reader.num_bytes

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> StepOutput:
        """Run one step over a ragged batch; states and KV are advanced in place.

        A row is called finite when all of its tokens left the last layer so, and then its KV and states
        are too. A NaN anywhere in a token's layers stays visible in its running sum. Sums, products,
        norms and a softmax over scores pass it on, and a banked sum is read again by every later site.
        What is cached is read by the very step that writes it: a token attends to its own KV row, so a
        NaN row makes its score NaN, and KDA's output o = S^T q reads all of the updated state (0 * NaN
        is NaN too). Infinities turn into NaN in the next norm (inf * 0). Two ways around remain, both at
        values near float32's limit, 3e38: an infinite k_pe whose scores are -inf in every head, and a
        state that overflows in the last update only. The runner looks at the snapshots themselves for
        the second.
        """
        ops = self._ops
        ops.part(parts.EMBEDDING)
        stream = ResidualStream(ops, ops.embedding(inputs.token_ids, self._embedding).to(self.dtype))
        for layer in self._layers:
            layer.forward(stream, inputs)
        ops.part(parts.NORMS)
        finite = ops.finite_rows(stream.running, inputs.ragged)
        x = self._read.forward(stream.take(inputs.sample_index))  # [samples, hidden]
        ops.part(parts.HEAD)
        return StepOutput(logits=ops.linear(x, self._lm_head).to(self._wide), finite=finite)


class _Layer:
    """A token mixer and a feed-forward network, each behind its norm and its read of the stream."""

    def __init__(self, spec: ModelSpec, index: int, reader: WeightReader, ops: Ops) -> None:
        hidden, block = spec.hidden_size, spec.attn_res_block
        self._ops = ops
        self._banks = block is not None and index % block == 0
        mixer_site, mlp_site = (None, None) if block is None else ("self_attention_res", "mlp_res")
        eps, norms = spec.norm_eps, ("input_layernorm.weight", "post_attention_layernorm.weight")
        self._mixer_read = ResidualRead(mixer_site, norms[0], hidden, eps, reader, ops)
        self._mixer = _mixer(spec, index, reader.scope("self_attn."), ops)
        self._mlp_read = ResidualRead(mlp_site, norms[1], hidden, eps, reader, ops)
        self._mlp = build_feed_forward(spec, index, reader, ops)

    def forward(self, stream: ResidualStream, inputs: StepInputs) -> None:
        """Advance the stream by this layer."""
        part = self._ops.part
        part(parts.NORMS)
        x = self._mixer_read.forward(stream)
        mixed = self._mixer.forward(x, inputs)
        part(parts.NORMS)
        if self._banks:  # after the read: a layer that opens a block still reads the sum it banks
            stream.start_block(mixed)
        else:
            stream.add(mixed)
        fed = self._mlp.forward(self._mlp_read.forward(stream))
        part(parts.NORMS)
        stream.add(fed)


def _mixer(spec: ModelSpec, index: int, reader: WeightReader, ops: Ops) -> KdaLayer | MlaLayer:
    kind = spec.layers[index]
    place = spec.layers[:index].count(kind)  # number of this layer among those of its kind
    if kind is LayerKind.KDA:
        return KdaLayer(spec, place, reader, ops)
    return MlaLayer(spec, place, reader, ops)
