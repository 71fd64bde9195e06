"""What each part of a step computes and moves on one rank: FLOPs and bytes, before any hardware.

Notation: T tokens of the step, R rows, S rows that sample, P pairs of query and key, X context tokens;
t ranks share the heads, d such groups share the experts. A multiplication and an addition are two FLOPs; a
weight is used with 2 FLOPs a token and read once a step. Activations are bf16.

    projections        2 T w FLOPs; 2 bytes a weight w, and T inputs and outputs
    KDA recurrence     chunked form, C = 64 tokens a chunk, a head of width D: T (6 D^2 + 10 C D) FLOPs
                       (Q K^T, K K^T, the two products with the inverse and A V: 2 C D each; W S, Q S and
                       the update of S: 2 D^2 each); each row's state and window is read and written
    MLA attention      absorbed: 2 T w_kv + 2 P H (2 c + r) FLOPs (c latent, r shared key), the cached row is
                       read once; or expanded: 2 X w_kv + 2 P H (k + v), keys and values written and read
                       too; whichever takes less time
    routed experts     a rank's share of N (1 - (1 - k/N)^(d T)) experts that are touched, each read once
    norms and reads    AttnRes reads its banks and the running sum at 2 L + 1 sites, all of them bf16
    collectives        all-reduce of n bytes over t ranks: 2 n (t-1)/t sent; dispatch (one byte an element)
                       and combine (two) to k experts: 3 k T/t l (r-1)/r, l the experts' width, r = t d ranks

Sources: the Kimi K3 technical report (arXiv:2607.24653) for the layers, the chunked form of
flash-linear-attention, DeepSeek-V2 (arXiv:2405.04434) for absorption, LatentMoE (arXiv:2601.18089) for what
crosses the links.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from milepost.model_spec import ModelSpec
from milepost.sim.cost.part_weights import (
    DENSE,
    EXPERTS,
    HEAD,
    KDA,
    MLA,
    NORMS,
    ROUTER,
    SHARED,
    expert_parameters,
    weights_of,
)
from milepost.sim.cost.step_work import StepWork

__all__ = [
    "ATTENTION",
    "COLLECTIVES",
    "COPIES",
    "HEAD_PART",
    "LAUNCHES",
    "RECURRENCE",
    "SNAPSHOTS",
    "Collective",
    "PartWork",
    "RankSizes",
    "StepParts",
]

RECURRENCE = "KDA recurrence"
ATTENTION = "MLA attention"
HEAD_PART = HEAD
SNAPSHOTS = "snapshot writes"
COPIES = "page copies"
COLLECTIVES = "collectives"
LAUNCHES = "launches and host"

CHUNK = 64  # tokens of a chunk of the recurrence, as flash-linear-attention's and FlashKDA's kernels
ITEM = 2  # bytes of an activation
DEFAULT_BLOCK = 64
DISPATCH_BYTES, COMBINE_BYTES = 1, 2  # fp8 to the experts, bf16 back

# Kernels of a layer in a fused engine, for the overhead of each; assumed, not counted in one. KDA:
# projections, convolution, gate, recurrence, norm, output. MLA: projections and norms of the latent, cache
# write, attention, gate, output. Experts: router, sort, latent down, two grouped products, activation,
# finish, up, shared.
KERNELS_KDA, KERNELS_MLA, KERNELS_EXPERTS, KERNELS_DENSE, KERNELS_NORMS, KERNELS_HEAD = 6, 9, 9, 3, 2, 3


class PartWork(NamedTuple):
    """One part of a step on one rank.

    Attributes:
        name: of the part.
        flops: floating-point operations.
        bytes: read and written in memory.
    """

    name: str
    flops: float
    bytes: float


class Collective(NamedTuple):
    """Operations of one kind among ranks.

    Attributes:
        ranks: that take part.
        operations: of a step.
        bytes: that a rank sends in all of them.
    """

    ranks: int
    operations: int
    bytes: float


class RankSizes(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is divided, and its item sizes; see `milepost.sim.cost.roofline.RooflineCost`."""

    tensor_parallel: int = 1
    data_parallel: int = 1
    kv_itemsize: int = 2
    page_bytes: int = 0
    state_itemsize: int = 4


class _Linear(NamedTuple):
    """A part that is products with weights alone: for each token, and once a step."""

    name: str
    flops: float
    token_bytes: float
    weight_bytes: float


class StepParts:
    """The parts of one model on one rank.

    Args:
        spec: the model.
        sizes: how it is divided.
    """

    def __init__(self, spec: ModelSpec, sizes: RankSizes) -> None:
        self._spec = spec
        self._sizes = sizes
        self._ranks = sizes.tensor_parallel * sizes.data_parallel
        self._num_moe = len(spec.layers) - spec.first_dense
        self._weights = weights_of(spec)
        self._linear = [part for part in map(self._projection, (KDA, MLA, ROUTER, SHARED, DENSE)) if part]
        self._residual_bytes = _residual_bytes(spec)
        self._page_bytes = sizes.page_bytes or (
            DEFAULT_BLOCK * len(spec.mla_layers) * spec.mla.row_dim * sizes.kv_itemsize
        )
        self.kernels = self._count_kernels()

    # -- by the number of tokens alone ----------------------------------------------------------

    def by_tokens(self, tokens: int) -> list[PartWork]:
        """The parts that depend on the number of tokens only."""
        parts = [
            PartWork(part.name, part.flops * tokens, part.weight_bytes + part.token_bytes * tokens)
            for part in self._linear
        ]
        parts.append(self._experts(tokens))
        norms = self._weights[NORMS].replicated
        # Each element of a read is squared, weighted and summed: some 6 FLOPs for its 2 bytes.
        parts.append(
            PartWork(NORMS, 3.0 * self._residual_bytes * tokens, self._residual_bytes * tokens + norms * ITEM)
        )
        return parts

    def _projection(self, name: str) -> _Linear | None:
        weights = self._weights.get(name)
        if weights is None:
            return None
        held = weights.sharded / self._sizes.tensor_parallel + weights.replicated
        multiplied = held
        if name == MLA:  # what makes keys and values is counted with attention, which chooses its form
            multiplied -= self._kv_up / self._sizes.tensor_parallel
        # Inputs and outputs of a square-ish product: 2 sqrt(w) elements; of all of them about sqrt(layers w).
        layers = max(1, self._layers_of(name))
        return _Linear(
            name=name,
            flops=2.0 * multiplied,
            token_bytes=2.0 * ITEM * layers * (held / layers) ** 0.5,
            weight_bytes=held * weights.bytes_per_parameter,
        )

    def _layers_of(self, name: str) -> int:
        spec = self._spec
        counts = {KDA: len(spec.kda_layers), MLA: len(spec.mla_layers), DENSE: spec.first_dense}
        return counts.get(name, self._num_moe)

    def _experts(self, tokens: int) -> PartWork:
        spec, moe = self._spec, self._spec.moe
        everyone = tokens * self._sizes.data_parallel
        chosen = moe.top_k / moe.num_experts
        touched = moe.num_experts * (1.0 - (1.0 - chosen) ** everyone)
        one = expert_parameters(spec)
        width = (moe.latent_dim or spec.hidden_size) + 2 * moe.intermediate
        pairs = everyone * moe.top_k
        share = self._num_moe / self._ranks
        return PartWork(
            EXPERTS,
            2.0 * pairs * one * share,
            share * (touched * one * self._weights[EXPERTS].bytes_per_parameter + 2.0 * ITEM * pairs * width),
        )

    # -- by rows, context and pairs -------------------------------------------------------------

    def recurrence(self, tokens: int, rows: int) -> PartWork:
        """The recurrence of all KDA layers: projections and convolution are not in it."""
        kda, sizes = self._spec.kda, self._sizes
        layers, width = len(self._spec.kda_layers), self._spec.kda.head_dim
        heads = kda.num_heads / sizes.tensor_parallel
        flops = layers * heads * tokens * (6 * width**2 + 10 * CHUNK * width)
        moved = 2 * self.state_bytes * rows
        # q, k, v and the decay in, the output out.
        return PartWork(RECURRENCE, flops, moved + layers * heads * tokens * 5 * width * ITEM)

    @property
    def state_bytes(self) -> float:
        """Of one sequence's state on one rank."""
        kda, sizes = self._spec.kda, self._sizes
        heads = kda.num_heads / sizes.tensor_parallel
        matrix = kda.head_dim**2 * sizes.state_itemsize
        window = 3 * kda.head_dim * kda.conv_window * ITEM
        return len(self._spec.kda_layers) * heads * (matrix + window)

    @property
    def _kv_up(self) -> int:
        """Weights of all layers that make keys and values out of the latent row."""
        mla = self._spec.mla
        return (
            len(self._spec.mla_layers)
            * mla.kv_lora_rank
            * mla.num_heads
            * (mla.nope_head_dim + mla.v_head_dim)
        )

    def attention(self, work: StepWork) -> tuple[PartWork, PartWork]:
        """Attention of all MLA layers in its two forms: absorbed, and expanded."""
        mla, sizes = self._spec.mla, self._sizes
        layers = len(self._spec.mla_layers)
        heads = mla.num_heads / sizes.tensor_parallel
        up = 2.0 * self._kv_up / sizes.tensor_parallel
        # The cache is the same on all ranks of a group: each has every row, and reads it once a step.
        cache = layers * mla.row_dim * sizes.kv_itemsize * (work.context + work.tokens)
        absorbed = layers * heads * 2.0 * (mla.row_dim + mla.kv_lora_rank)
        expanded = layers * heads * 2.0 * (mla.qk_head_dim + mla.v_head_dim)
        queries = layers * heads * ITEM * work.tokens
        keys_and_values = layers * heads * (mla.qk_head_dim + mla.v_head_dim) * 2 * ITEM * work.context
        return (
            PartWork(
                ATTENTION,
                up * work.tokens + absorbed * work.pairs,
                cache + queries * (mla.row_dim + mla.kv_lora_rank),
            ),
            PartWork(
                ATTENTION,
                up * work.context + expanded * work.pairs,
                cache + keys_and_values + queries * (mla.qk_head_dim + mla.v_head_dim),
            ),
        )

    def head(self, sampled: int) -> PartWork:
        """Logits of the rows that sample; written and read once in float32."""
        vocabulary = self._spec.vocab_size / self._sizes.tensor_parallel
        weights = vocabulary * self._spec.hidden_size
        return PartWork(HEAD, 2.0 * weights * sampled, weights * ITEM + sampled * vocabulary * 8)

    def snapshots(self, count: int) -> PartWork:
        """States read and written once more."""
        return PartWork(SNAPSHOTS, 0.0, 2.0 * self.state_bytes * count)

    def copies(self, count: int) -> PartWork:
        """Pages read and written."""
        return PartWork(COPIES, 0.0, 2.0 * self._page_bytes * count)

    # -- between ranks --------------------------------------------------------------------------

    def collectives(self, tokens: int) -> tuple[Collective, ...]:
        """What a rank exchanges: all-reduces among those that share heads, dispatch and combine among all."""
        spec, sizes = self._spec, self._sizes
        t, layers, hidden = sizes.tensor_parallel, len(spec.layers), spec.hidden_size
        latent = spec.moe.latent_dim
        found = []
        if t > 1:
            # After attention, and after the feed-forward network; LatentMoE's sum is reduced before its norm.
            inner = latent if latent and sizes.data_parallel == 1 else 0
            sent = 2.0 * ITEM * (t - 1) / t * tokens * (2 * layers * hidden + self._num_moe * inner)
            found.append(Collective(t, 2 * layers + (self._num_moe if inner else 0), sent))
        if sizes.data_parallel > 1:
            crossing = (self._ranks - 1) / self._ranks * spec.moe.top_k * tokens / t
            sent = self._num_moe * crossing * (latent or hidden) * (DISPATCH_BYTES + COMBINE_BYTES)
            found.append(Collective(self._ranks, 2 * self._num_moe, sent))
        return tuple(found)

    def _count_kernels(self) -> int:
        spec = self._spec
        return (
            len(spec.kda_layers) * KERNELS_KDA
            + len(spec.mla_layers) * KERNELS_MLA
            + self._num_moe * KERNELS_EXPERTS
            + spec.first_dense * KERNELS_DENSE
            + len(spec.layers) * KERNELS_NORMS
            + KERNELS_HEAD
        )


def _residual_bytes(spec: ModelSpec) -> float:
    """Bytes that the norms and residual sums of all layers move for each token, the embedding's row too."""
    row = ITEM * spec.hidden_size
    sites = 2 * len(spec.layers) + 1
    if spec.attn_res_block is None:
        # Sum and what is added are read; the sum and its norm are written.
        return float(4 * row * sites + 2 * row)
    banked = 0
    read = 0
    for layer in range(len(spec.layers)):
        read += banked
        banked += layer % spec.attn_res_block == 0
        read += banked
    read += banked  # before the output head
    return float(row * (read + 4 * sites) + 2 * row)
