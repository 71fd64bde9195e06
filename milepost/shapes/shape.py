"""What sizing needs of a model: how much a layer keeps, holds and computes, whatever its kind.

The engine runs two families and reads them as `milepost.model_spec.ModelSpec`. Sizes are arithmetic, so they
are known for many more: gated DeltaNet with grouped-query attention (Qwen3-Next), Mamba2 with grouped-query
attention (Nemotron-H), MLA alone (DeepSeek). A `ModelShape` holds their numbers in one vocabulary; a layer
is *recurrent* (keeps a state of fixed size), *attention* (keeps a row a token), or has a feed-forward network
only. All counts are of the whole model, before ranks divide it.
"""

from __future__ import annotations

import enum

import msgspec

__all__ = [
    "BF16_BYTES",
    "AttentionKind",
    "AttentionShape",
    "ExpertsShape",
    "ModelShape",
    "RecurrentKind",
    "RecurrentShape",
]

BF16_BYTES = 2.0
"""Bytes of a parameter that nothing stores in fewer."""


class RecurrentKind(enum.Enum):
    """What updates a recurrent state."""

    KDA = "KDA"
    GATED_DELTA_NET = "gated DeltaNet"
    MAMBA2 = "Mamba2"


class AttentionKind(enum.Enum):
    """What a token leaves in the cache."""

    MLA = "MLA"
    GQA = "GQA"


class RecurrentShape(msgspec.Struct, frozen=True, kw_only=True):
    """One recurrent layer.

    Attributes:
        kind: how the state is updated.
        heads: heads with a matrix of their own (of values); ranks divide them.
        rows: rows of a head's matrix: the width of its value.
        row_dim: elements of a row: the width of its key, or Mamba2's state size.
        key_heads: heads of queries and keys (KDA: as many as `heads`), or Mamba2's groups of B and C.
        conv_window: past inputs that the convolution keeps a channel; 0 without one.
        sharded: parameters that tensor-parallel ranks divide.
        replicated: parameters that every rank holds whole.
        bytes_per_parameter: of `sharded` and `replicated`, their mean over all such layers.
    """

    kind: RecurrentKind
    heads: int
    rows: int
    row_dim: int
    key_heads: int
    conv_window: int
    sharded: int
    replicated: int
    bytes_per_parameter: float = BF16_BYTES

    @property
    def matrix_elements(self) -> int:
        """Elements of all heads' matrices of a layer."""
        return self.heads * self.rows * self.row_dim

    def conv_channels(self, tensor_parallel: int = 1) -> int:
        """Channels of the convolution on one rank: values, and the queries and keys of its heads.

        A rank has one head of queries and keys at least.
        """
        key_heads = max(1, self.key_heads // tensor_parallel)
        return self.heads // tensor_parallel * self.rows + 2 * key_heads * self.row_dim


class AttentionShape(msgspec.Struct, frozen=True, kw_only=True):
    """One attention layer.

    Attributes:
        kind: MLA or GQA.
        heads: query heads; ranks divide them.
        kv_heads: heads of keys and values that ranks divide, until each has one. MLA: 1, whole on each rank.
        row_dim: elements that one token caches in one layer, of all `kv_heads`. MLA: latent and shared key.
        qk_head_dim: width of a head's query and key.
        v_head_dim: width of a head's value.
        latent_dim: MLA's latent; 0 for GQA.
        sharded: parameters that tensor-parallel ranks divide.
        replicated: parameters that every rank holds whole.
        kv_up: of `sharded`, those that make keys and values out of the latent; 0 for GQA.
        bytes_per_parameter: of `sharded` and `replicated`, their mean over all such layers.
    """

    kind: AttentionKind
    heads: int
    kv_heads: int
    row_dim: int
    qk_head_dim: int
    v_head_dim: int
    latent_dim: int = 0
    sharded: int
    replicated: int
    kv_up: int = 0
    bytes_per_parameter: float = BF16_BYTES

    def rank_row_dim(self, tensor_parallel: int = 1) -> int:
        """Elements that one token caches in one layer on one rank, which has one head of them at least."""
        return self.row_dim // self.kv_heads * max(1, self.kv_heads // tensor_parallel)


class ExpertsShape(msgspec.Struct, frozen=True, kw_only=True):
    """One mixture of experts.

    Attributes:
        num_experts: routed experts.
        top_k: that a token takes.
        width: of an expert's input and output: LatentMoE's latent, else the hidden size.
        latent: whether `width` is a latent's, so that two projections stand around the experts.
        intermediate: width inside an expert.
        matrices: of an expert: 3 with a gate (gate, up, down), 2 without.
        bytes_per_parameter: of routed experts, as stored and read.
        shared_parameters: of the shared experts (0: none); ranks divide them.
        latent_down: parameters of the projection to the latent, whole on every rank.
        latent_up: parameters of the projection back, divided by columns.
        router: parameters of router and its biases, whole on every rank, in bf16; with them the vector
            that weighs the shared expert in Qwen's models.
        shared_bytes_per_parameter: of `shared_parameters`.
        latent_bytes_per_parameter: of `latent_down` and `latent_up`.
    """

    num_experts: int
    top_k: int
    width: int
    latent: bool
    intermediate: int
    matrices: int
    bytes_per_parameter: float
    shared_parameters: int
    latent_down: int
    latent_up: int
    router: int
    shared_bytes_per_parameter: float = BF16_BYTES
    latent_bytes_per_parameter: float = BF16_BYTES

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert."""
        return self.matrices * self.width * self.intermediate

    @property
    def expert_bytes(self) -> float:
        """Bytes of one routed expert, as stored and read."""
        return self.expert_parameters * self.bytes_per_parameter


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """A whole model in numbers. Draft heads that come with a checkpoint (MTP) are not counted.

    Attributes:
        family: config.json's model_type.
        hidden_size: width of a token.
        vocab_size: tokens of the vocabulary.
        max_position: tokens of the longest sequence.
        blocks: residual blocks as the model counts its layers.
        recurrent_layers: layers that keep a state.
        attention_layers: layers that keep a row a token.
        moe_layers: layers with a mixture of experts.
        dense_layers: layers with a dense feed-forward network.
        recurrent: one recurrent layer; None without such layers.
        attention: one attention layer; None without such layers.
        experts: one mixture of experts; None without.
        dense_parameters: of one dense feed-forward network.
        norm_parameters: of all norms and residual reads of the model, whole on every rank.
        tied_embeddings: whether the output head is the embedding table.
        attn_res_block: layers after which Attention Residuals bank the running sum; None: plain residuals.
        dense_bytes_per_parameter: of `dense_parameters`, their mean over all such layers.
        head_bytes_per_parameter: of the output head; the embedding table is always bf16.
    """

    family: str
    hidden_size: int
    vocab_size: int
    max_position: int
    blocks: int
    recurrent_layers: int
    attention_layers: int
    moe_layers: int
    dense_layers: int
    recurrent: RecurrentShape | None
    attention: AttentionShape | None
    experts: ExpertsShape | None
    dense_parameters: int
    norm_parameters: int
    tied_embeddings: bool = False
    attn_res_block: int | None = None
    dense_bytes_per_parameter: float = BF16_BYTES
    head_bytes_per_parameter: float = BF16_BYTES
