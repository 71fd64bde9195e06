"""What each part of a step computes and moves on one rank: FLOPs and bytes, before any hardware.

Notation: T tokens of the step, R rows, S rows that sample, P pairs of query and key, X context tokens;
t ranks share the heads, d such groups share the experts. A multiplication and an addition are two FLOPs; a
weight is used with 2 FLOPs a token and read once a step. Activations are bf16.

    projections        2 T w FLOPs; 2 bytes a weight w, and T inputs and outputs
    recurrence         chunked form, C = 64 tokens a chunk, a head with keys of width K and values of V.
                       Delta rules (KDA, gated DeltaNet): T (6 K V + 6 C K + 4 C V) FLOPs (Q K^T, K K^T, the
                       two products with the inverse and A V; W S, Q S and the update of S: 2 K V each).
                       Mamba2: T (4 K V + 2 C K g/H + 2 C V), its g groups share C B^T.
                       Each row's state and window is read and written
    MLA attention      absorbed: 2 T w_kv + 2 P H (2 c + r) FLOPs (c latent, r shared key), the cached row is
                       read once; or expanded: 2 X w_kv + 2 P H (k + v), keys and values written and read
                       too; whichever takes less time
    GQA attention      2 P H (k + v) FLOPs, the cached row of the rank's key and value heads is read once
    routed experts     a rank's share of N (1 - (1 - k/N)^(d' T)) experts that are touched, each read once;
                       d' of the d groups share one copy of the experts
    norms and reads    AttnRes reads its banks and the running sum at 2 L + 1 sites, all of them bf16
    collectives        all-reduce of n bytes over t ranks: 2 n (t-1)/t sent; dispatch (one byte an element)
                       and combine (two) to k experts: 3 k T/t l (e-1)/e, l the experts' width, e the ranks
                       that share a copy of them; with context divided among c of the t ranks, queries are
                       gathered and partial outputs reduced: (c-1)/c of both, twice an attention layer

Sources: the Kimi K3 technical report (arXiv:2607.24653) for the layers, the chunked form of
flash-linear-attention, DeepSeek-V2 (arXiv:2405.04434) for absorption, LatentMoE (arXiv:2601.18089) for what
crosses the links.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from milepost.shapes.shape import AttentionKind, AttentionShape, ModelShape, RecurrentKind, RecurrentShape
from milepost.sim.cost.part_weights import (
    DENSE,
    EXPERTS,
    HEAD,
    NORMS,
    ROUTER,
    SHARED,
    attention_projections,
    recurrent_projections,
    weights_of,
)
from milepost.sim.cost.step_work import StepWork

__all__ = [
    "COLLECTIVES",
    "COPIES",
    "EXCHANGE_ROUNDS",
    "LAUNCHES",
    "SNAPSHOTS",
    "Collective",
    "PartWork",
    "RankSizes",
    "StepParts",
    "bank_reads",
]

SNAPSHOTS = "snapshot writes"
COPIES = "page copies"
COLLECTIVES = "collectives"
LAUNCHES = "launches and host"

CHUNK = 64  # tokens of a chunk of the recurrence, as flash-linear-attention's and FlashKDA's kernels
ITEM = 2  # bytes of an activation
DEFAULT_BLOCK = 64
DISPATCH_BYTES, COMBINE_BYTES = 1, 2  # fp8 to the experts, bf16 back
# An exchange among groups tells its counts, sends, and waits for the last to arrive: 17 to 19 us where an
# all-reduce takes 5 to 6 (small steps on 8 x B200 and 16 x GB300 in aiconfigurator's tables).
EXCHANGE_ROUNDS = 3

# Kernels of a layer in a fused engine, for the overhead of each; assumed, not counted in one. KDA:
# projections, convolution, gate, recurrence, norm, output. MLA: projections and norms of the latent, cache
# write, attention, gate, output. GQA: projections, norm and rotation, cache write, attention, output.
# Experts: router, sort, latent down, two grouped products, activation, finish, up, shared.
KERNELS_RECURRENT = {RecurrentKind.KDA: 6, RecurrentKind.GATED_DELTA_NET: 6, RecurrentKind.MAMBA2: 5}
KERNELS_ATTENTION = {AttentionKind.MLA: 9, AttentionKind.GQA: 5}
KERNELS_EXPERTS, KERNELS_DENSE, KERNELS_NORMS, KERNELS_HEAD = 9, 3, 2, 3


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
    """How a model is divided, and its item sizes.

    A `StepWork` is that of one group of `tensor_parallel` ranks; every group is taken to be as busy.

    Attributes:
        tensor_parallel: ranks that share the heads of one sequence.
        data_parallel: such groups.
        expert_parallel: ranks, whole groups of them, that share one copy of the experts; 0 for all.
        context_parallel: of the ranks that share the heads, those that divide a context by tokens.
        kv_itemsize: bytes of a cached KV element.
        page_bytes: of a page of the rank, which a copy moves; 0 for a block of 64 tokens.
        state_itemsize: bytes of an element of the recurrent matrices.
    """

    tensor_parallel: int = 1
    data_parallel: int = 1
    expert_parallel: int = 0
    context_parallel: int = 1
    kv_itemsize: int = 2
    page_bytes: int = 0
    state_itemsize: int = 4

    @property
    def ranks(self) -> int:
        """All of them."""
        return self.tensor_parallel * self.data_parallel

    @property
    def expert_ranks(self) -> int:
        """Ranks that share one copy of the experts."""
        return self.expert_parallel or self.ranks

    @property
    def expert_groups(self) -> int:
        """Tensor-parallel groups that share one copy of the experts."""
        return self.expert_ranks // self.tensor_parallel


class _Linear(NamedTuple):
    """A part that is products with weights alone: for each token, and once a step."""

    name: str
    flops: float
    token_bytes: float
    weight_bytes: float


class StepParts:
    """The parts of one model on one rank.

    Args:
        shape: the model.
        sizes: how it is divided.
    """

    def __init__(self, shape: ModelShape, sizes: RankSizes) -> None:
        self._shape = shape
        self._sizes = sizes
        self._weights = weights_of(shape)
        linear = (recurrent_projections(shape), attention_projections(shape), ROUTER, SHARED, DENSE)
        self._linear = [part for part in map(self._projection, linear) if part]
        self._residual_bytes = _residual_bytes(shape)
        self._page_bytes = sizes.page_bytes or DEFAULT_BLOCK * self.kv_bytes_per_token
        self.kernels = self._count_kernels()
        self.recurrence_name = f"{shape.recurrent.kind.value} recurrence" if shape.recurrent else ""
        self.attention_name = f"{shape.attention.kind.value} attention" if shape.attention else ""

    # -- by the number of tokens alone ----------------------------------------------------------

    def by_tokens(self, tokens: int) -> list[PartWork]:
        """The parts that depend on the number of tokens only."""
        parts = [
            PartWork(part.name, part.flops * tokens, part.weight_bytes + part.token_bytes * tokens)
            for part in self._linear
        ]
        if self._shape.experts is not None:
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
        if name == attention_projections(self._shape):
            # What makes keys and values is counted with attention, which chooses its form.
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
        shape = self._shape
        counts = {
            recurrent_projections(shape): shape.recurrent_layers,
            attention_projections(shape): shape.attention_layers,
            DENSE: shape.dense_layers,
        }
        return counts.get(name, shape.moe_layers)

    def _experts(self, tokens: int) -> PartWork:
        experts, sizes = self._shape.experts, self._sizes
        assert experts is not None
        everyone = tokens * sizes.expert_groups
        touched = experts.num_experts * (1.0 - (1.0 - experts.top_k / experts.num_experts) ** everyone)
        width = experts.width + (experts.matrices - 1) * experts.intermediate
        pairs = everyone * experts.top_k
        share = self._shape.moe_layers / sizes.expert_ranks
        return PartWork(
            EXPERTS,
            2.0 * pairs * experts.expert_parameters * share,
            share * (touched * experts.expert_bytes + 2.0 * ITEM * pairs * width),
        )

    # -- by rows, context and pairs -------------------------------------------------------------

    def recurrence(self, tokens: int, rows: int) -> PartWork:
        """The recurrence of all recurrent layers: projections and convolution are not in it."""
        layer = self._shape.recurrent
        if layer is None:
            return PartWork("", 0.0, 0.0)
        share = self._shape.recurrent_layers / self._sizes.tensor_parallel
        # q, k, v and the decay in, the output out.
        moved = 2 * layer.key_heads * layer.row_dim + 2 * layer.heads * layer.rows
        moved += layer.heads * (layer.row_dim if layer.kind is RecurrentKind.KDA else 1)
        return PartWork(
            self.recurrence_name,
            share * tokens * _recurrence_flops(layer),
            2 * self.state_bytes * rows + share * tokens * moved * ITEM,
        )

    @property
    def state_bytes(self) -> float:
        """Of one sequence's state on one rank."""
        layer, sizes = self._shape.recurrent, self._sizes
        if layer is None:
            return 0.0
        matrices = layer.matrix_elements / sizes.tensor_parallel * sizes.state_itemsize
        window = layer.conv_channels(sizes.tensor_parallel) * layer.conv_window * ITEM
        return self._shape.recurrent_layers * (matrices + window)

    @property
    def kv_bytes_per_token(self) -> int:
        """Of one token's rows on the rank that keeps it."""
        layer, sizes = self._shape.attention, self._sizes
        if layer is None:
            return 0
        row = layer.rank_row_dim(sizes.tensor_parallel // sizes.context_parallel)
        return self._shape.attention_layers * row * sizes.kv_itemsize

    @property
    def _kv_up(self) -> int:
        """Weights of all layers that make keys and values out of the latent row."""
        layer = self._shape.attention
        return self._shape.attention_layers * layer.kv_up if layer else 0

    def attention(self, work: StepWork) -> tuple[PartWork, ...]:
        """Attention of all layers in each of its forms: MLA's absorbed and expanded, or GQA's one."""
        layer = self._shape.attention
        if layer is None:
            return (PartWork("", 0.0, 0.0),)
        # A rank of a tensor-parallel group has every row of MLA, or those of its key and value heads, and
        # reads it once a step; ranks that share the context have some of the rows, and more of the heads.
        cache = self.kv_bytes_per_token * (work.context + work.tokens) / self._sizes.context_parallel
        expanded = self._expanded(layer, work, cache)
        if layer.kind is AttentionKind.GQA:
            return (expanded,)
        return (self._absorbed(layer, work, cache), expanded)

    def _absorbed(self, layer: AttentionShape, work: StepWork, cache: float) -> PartWork:
        heads = self._shape.attention_layers * layer.heads / self._sizes.tensor_parallel
        widths = layer.row_dim + layer.latent_dim
        up = 2.0 * self._kv_up / self._sizes.tensor_parallel
        return PartWork(
            self.attention_name,
            up * work.tokens + 2.0 * heads * widths * work.pairs,
            cache + ITEM * heads * widths * work.tokens,
        )

    def _expanded(self, layer: AttentionShape, work: StepWork, cache: float) -> PartWork:
        heads = self._shape.attention_layers * layer.heads / self._sizes.tensor_parallel
        widths = layer.qk_head_dim + layer.v_head_dim
        up = 2.0 * self._kv_up / self._sizes.tensor_parallel
        # MLA's keys and values are made, written and read; GQA's lie in the cache.
        made = 2 * ITEM * heads * widths * work.context if layer.kind is AttentionKind.MLA else 0.0
        return PartWork(
            self.attention_name,
            up * work.context + 2.0 * heads * widths * work.pairs,
            cache + made + ITEM * heads * widths * work.tokens,
        )

    def head(self, sampled: int) -> PartWork:
        """Logits of the rows that sample; written and read once in float32."""
        vocabulary = self._shape.vocab_size / self._sizes.tensor_parallel
        weights = vocabulary * self._shape.hidden_size
        return PartWork(
            HEAD,
            2.0 * weights * sampled,
            weights * self._shape.head_bytes_per_parameter + sampled * vocabulary * 8,
        )

    def snapshots(self, count: int) -> PartWork:
        """States read and written once more."""
        return PartWork(SNAPSHOTS, 0.0, 2.0 * self.state_bytes * count)

    def copies(self, count: int) -> PartWork:
        """Pages read and written."""
        return PartWork(COPIES, 0.0, 2.0 * self._page_bytes * count)

    # -- between ranks --------------------------------------------------------------------------

    def collectives(self, tokens: int) -> tuple[Collective, ...]:
        """What a rank exchanges with those that share its heads, its copy of the experts, or a context."""
        found = (self._all_reduces(tokens), self._expert_exchange(tokens), self._context_exchange(tokens))
        return tuple(kind for kind in found if kind.operations)

    def _all_reduces(self, tokens: int) -> Collective:
        """After each mixer and feed-forward network; LatentMoE's sum is reduced before its norm."""
        shape, sizes = self._shape, self._sizes
        t = sizes.tensor_parallel
        if t == 1:
            return Collective(1, 0, 0.0)
        sums = shape.recurrent_layers + shape.attention_layers + shape.dense_layers + shape.moe_layers
        experts = shape.experts
        latent = experts.width if experts and experts.latent and sizes.expert_groups == 1 else 0
        sent = 2.0 * ITEM * (t - 1) / t * tokens * (sums * shape.hidden_size + shape.moe_layers * latent)
        return Collective(t, sums + (shape.moe_layers if latent else 0), sent)

    def _expert_exchange(self, tokens: int) -> Collective:
        """Dispatch and combine, among groups that share one copy of the experts."""
        experts, sizes = self._shape.experts, self._sizes
        if experts is None or sizes.expert_groups == 1:
            return Collective(1, 0, 0.0)
        ranks = sizes.expert_ranks
        crossing = (ranks - 1) / ranks * experts.top_k * tokens / sizes.tensor_parallel
        sent = self._shape.moe_layers * crossing * experts.width * (DISPATCH_BYTES + COMBINE_BYTES)
        return Collective(ranks, 2 * EXCHANGE_ROUNDS * self._shape.moe_layers, sent)

    def _context_exchange(self, tokens: int) -> Collective:
        """Queries are gathered among the ranks that share a context, and their partial outputs reduced."""
        layer, sizes = self._shape.attention, self._sizes
        c = sizes.context_parallel
        if layer is None or c == 1:
            return Collective(1, 0, 0.0)
        widths = layer.row_dim + layer.latent_dim
        if layer.kind is AttentionKind.GQA:
            widths = layer.qk_head_dim + layer.v_head_dim
        heads = layer.heads * c / sizes.tensor_parallel
        sent = self._shape.attention_layers * (c - 1) / c * heads * widths * ITEM * tokens
        return Collective(c, 2 * self._shape.attention_layers, sent)

    def _count_kernels(self) -> int:
        shape = self._shape
        count = shape.moe_layers * KERNELS_EXPERTS + shape.dense_layers * KERNELS_DENSE
        if shape.recurrent:
            count += shape.recurrent_layers * KERNELS_RECURRENT[shape.recurrent.kind]
        if shape.attention:
            count += shape.attention_layers * KERNELS_ATTENTION[shape.attention.kind]
        return count + shape.blocks * KERNELS_NORMS + KERNELS_HEAD


def _recurrence_flops(layer: RecurrentShape) -> int:
    """Of one token in one layer, all heads; see the module's table."""
    k, v = layer.row_dim, layer.rows
    if layer.kind is RecurrentKind.MAMBA2:
        return layer.heads * (4 * k * v + 2 * CHUNK * v) + layer.key_heads * 2 * CHUNK * k
    return layer.heads * (6 * k * v + CHUNK * (6 * k + 4 * v))


def _residual_bytes(shape: ModelShape) -> float:
    """Bytes that the norms and residual sums of all layers move for each token, the embedding's row too."""
    row = ITEM * shape.hidden_size
    sites = shape.recurrent_layers + shape.attention_layers + shape.dense_layers + shape.moe_layers + 1
    # Sum and what is added are read; the sum and its norm are written.
    return float(row * (bank_reads(shape) + 4 * sites + 2))


def bank_reads(shape: ModelShape) -> int:
    """Banked rows that Attention Residuals read for a token, in all layers; 0 with plain residuals."""
    if shape.attn_res_block is None:
        return 0
    banked = read = 0
    for block in range(shape.blocks):
        read += banked
        banked += block % shape.attn_res_block == 0
        read += banked
    return read + banked  # before the output head
