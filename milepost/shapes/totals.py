"""How many parameters a shape comes to, what one token multiplies with, and the bytes of the checkpoint."""

from __future__ import annotations

from milepost.shapes.shape import BF16_BYTES, AttentionShape, ExpertsShape, ModelShape, RecurrentShape

__all__ = ["activated_parameters", "checkpoint_bytes", "total_parameters"]


def total_parameters(shape: ModelShape) -> int:
    """All parameters of the language model.

    Draft heads (MTP) and towers for images, which come with some checkpoints, are not among them.
    """
    experts = shape.experts
    routed = 0 if experts is None else shape.moe_layers * experts.num_experts * experts.expert_parameters
    tables = 1 if shape.tied_embeddings else 2
    return tables * shape.vocab_size * shape.hidden_size + _always(shape) + routed


def activated_parameters(shape: ModelShape) -> int:
    """What one token multiplies with: all but the experts that it does not take and the embedding table."""
    experts = shape.experts
    routed = 0 if experts is None else shape.moe_layers * experts.top_k * experts.expert_parameters
    return shape.vocab_size * shape.hidden_size + _always(shape) + routed


def checkpoint_bytes(shape: ModelShape) -> float:
    """Bytes of all parameters as stored, with the scales of quantised ones."""
    table = shape.vocab_size * shape.hidden_size
    total = BF16_BYTES * (table + shape.norm_parameters)
    if not shape.tied_embeddings:
        total += table * shape.head_bytes_per_parameter
    if (recurrent := shape.recurrent) is not None:
        total += shape.recurrent_layers * _of_mixer(recurrent) * recurrent.bytes_per_parameter
    if (attention := shape.attention) is not None:
        total += shape.attention_layers * _of_mixer(attention) * attention.bytes_per_parameter
    total += shape.dense_layers * shape.dense_parameters * shape.dense_bytes_per_parameter
    if (experts := shape.experts) is not None:
        layer = experts.num_experts * experts.expert_bytes
        layer += experts.shared_parameters * experts.shared_bytes_per_parameter
        layer += (experts.latent_down + experts.latent_up) * experts.latent_bytes_per_parameter
        total += shape.moe_layers * (layer + experts.router * BF16_BYTES)
    return total


def _always(shape: ModelShape) -> int:
    """Parameters that every token multiplies with, tables aside."""
    total = shape.norm_parameters + shape.dense_layers * shape.dense_parameters
    if shape.recurrent is not None:
        total += shape.recurrent_layers * _of_mixer(shape.recurrent)
    if shape.attention is not None:
        total += shape.attention_layers * _of_mixer(shape.attention)
    if shape.experts is not None:
        total += shape.moe_layers * _of_experts(shape.experts)
    return total


def _of_mixer(mixer: RecurrentShape | AttentionShape) -> int:
    return mixer.sharded + mixer.replicated


def _of_experts(experts: ExpertsShape) -> int:
    """Of one mixture, all but the routed experts."""
    return experts.shared_parameters + experts.latent_down + experts.latent_up + experts.router
