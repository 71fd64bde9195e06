"""MLA attention for CPUs: rows in their cached form or expanded, whichever needs fewer products.

Per query, cached token and head the absorbed form costs row_dim + lora products; the expanded one
nope + rope + v, plus lora * (nope + v) once per cached token and head. So short rows, decodes above
all, attend to the rows as they are cached, and long ones expand them. Both walk the cache in segments
of whole blocks with an online softmax: scratch memory doesn't grow with the context.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from milepost.kernels.mla_attention import MlaDims, check
from milepost.kernels.mla_attention.cpu_softmax import OnlineSoftmax
from milepost.kernels.paging import PagedKv, Ragged
from milepost.kernels.precision import compute_dtype

__all__ = ["mla_attention"]

_QUERY_TILE = 128
_MAX_SEGMENT = 2048
_MAX_SCORES = 1 << 20
"""Scores [heads, queries, keys] held at a time: 4 MB."""

# Cached rows [keys, row_dim] -> keys [(heads,) keys, width], values [(heads,) keys, width].
_Expand = Callable[[Tensor], tuple[Tensor, Tensor]]


def mla_attention(q: Tensor, kv_b: Tensor, kv: PagedKv, layer: int, ragged: Ragged) -> Tensor:
    """See `milepost.kernels.mla_attention.MlaAttention`."""
    dims = check(q, kv_b, kv, layer, ragged)
    dtype = compute_dtype(q.dtype)
    queries = q.to(dtype).transpose(0, 1) * (dims.nope + dims.rope) ** -0.5  # [heads, tokens, nope + rope]
    kv_b = kv_b.to(dtype)
    out = torch.empty(q.shape[0], dims.heads, dims.v, dtype=dtype)
    longest = _absorbed_up_to(dims)
    short: list[int] = []
    long: list[int] = []
    for row in range(ragged.num_rows):
        length = ragged.offsets[row + 1] - ragged.offsets[row]
        (short if length <= longest else long).append(row)
    if short:
        _absorbed(queries, kv_b, kv, layer, ragged, short, dims, out)
    if long:
        _expanded(queries, kv_b, kv, layer, ragged, long, dims, out)
    return out.to(q.dtype)


def _absorbed_up_to(dims: MlaDims) -> float:
    """Longest row for which the absorbed form needs no more products than the expanded one."""
    saved = (2 * dims.lora + dims.rope) - (dims.nope + dims.rope + dims.v)  # per query, key and head
    return dims.lora * (dims.nope + dims.v) / saved if saved > 0 else float("inf")


def _absorbed(
    queries: Tensor,
    kv_b: Tensor,
    kv: PagedKv,
    layer: int,
    ragged: Ragged,
    rows: list[int],
    dims: MlaDims,
    out: Tensor,
) -> None:
    """Rows attended in latent space: kv_b goes into the queries and comes out of the results."""
    spans = [(ragged.offsets[row], ragged.offsets[row + 1]) for row in rows]
    everything = len(rows) == ragged.num_rows
    tokens = torch.cat([torch.arange(begin, end) for begin, end in spans])
    picked = queries if everything else queries[:, tokens]  # [heads, picked tokens, nope + rope]
    latent = picked[..., : dims.nope] @ kv_b[:, : dims.nope]  # [heads, picked tokens, lora]
    latent_queries = torch.cat([latent, picked[..., dims.nope :]], dim=-1)
    mixed = torch.empty_like(latent)

    def as_cached(cached: Tensor) -> tuple[Tensor, Tensor]:
        return cached, cached[:, : dims.lora]

    done = 0
    for row, (begin, end) in zip(rows, spans, strict=True):
        part = slice(done, done + end - begin)
        mixed[:, part] = _attend(
            latent_queries[:, part], ragged.start_list[row], kv, layer, row, as_cached, dims.lora
        )
        done += end - begin
    values = (mixed @ kv_b[:, dims.nope :].mT).transpose(0, 1)  # [picked tokens, heads, v]
    if everything:
        out.copy_(values)
    else:
        out[tokens] = values


def _expanded(
    queries: Tensor,
    kv_b: Tensor,
    kv: PagedKv,
    layer: int,
    ragged: Ragged,
    rows: list[int],
    dims: MlaDims,
    out: Tensor,
) -> None:
    """Rows attended in head space: each cached row is expanded once for all of the row's queries."""
    flat_kv_b = kv_b.flatten(0, 1)  # [heads * (nope + v), lora]

    def per_head(cached: Tensor) -> tuple[Tensor, Tensor]:
        expanded = functional.linear(cached[:, : dims.lora], flat_kv_b)
        by_head = expanded.view(-1, dims.heads, dims.nope + dims.v).transpose(0, 1)  # [heads, keys, nope + v]
        k_pe = cached[:, dims.lora :].expand(dims.heads, -1, -1)
        return torch.cat([by_head[..., : dims.nope], k_pe], dim=-1), by_head[..., dims.nope :]

    for row in rows:
        begin, end = ragged.offsets[row], ragged.offsets[row + 1]
        attended = _attend(queries[:, begin:end], ragged.start_list[row], kv, layer, row, per_head, dims.v)
        out[begin:end] = attended.transpose(0, 1)


def _attend(
    queries: Tensor, start: int, kv: PagedKv, layer: int, row: int, expand: _Expand, width: int
) -> Tensor:
    """Causal attention of one row's queries [heads, n, dk], the first at position `start`.

    Returns:
        [heads, n, width].
    """
    heads, n, _ = queries.shape
    num_keys = start + n
    tile = min(n, _QUERY_TILE)
    segment = _segment_tokens(heads * tile, kv.block_size)
    softmax = OnlineSoftmax.empty(heads, n, width, queries.dtype)
    for key_begin in range(0, num_keys, segment):
        key_end = min(key_begin + segment, num_keys)
        cached = _cached_rows(kv, layer, row, key_begin, key_end).to(queries.dtype)
        keys, values = expand(cached)
        # Queries before this segment see none of it.
        for begin in range(max(0, key_begin - start), n, tile):
            end = min(begin + tile, n)
            scores = queries[:, begin:end] @ keys.mT  # [heads, tile, keys]
            if key_end - 1 > start + begin:
                scores.masked_fill_(_future(start + begin, end - begin, key_begin, key_end), float("-inf"))
            softmax.add(slice(begin, end), scores, values)
    return softmax.result()


def _segment_tokens(queries: int, block_size: int) -> int:
    """Keys to take at a time beside so many queries: whole blocks, at least one."""
    keys = min(_MAX_SEGMENT, _MAX_SCORES // queries)
    return max(keys // block_size, 1) * block_size


def _cached_rows(kv: PagedKv, layer: int, row: int, begin: int, end: int) -> Tensor:
    """Cached rows at positions begin..end - 1 (begin at a block's start), [end - begin, row_dim]."""
    blocks = kv.block_table[row, begin // kv.block_size : -(-end // kv.block_size)]
    return kv.cache[blocks, layer].flatten(0, 1)[: end - begin]


def _future(first_query: int, num_queries: int, key_begin: int, key_end: int) -> Tensor:
    """Which keys lie after which query, [queries, keys] bool."""
    query_positions = torch.arange(first_query, first_query + num_queries)
    return torch.arange(key_begin, key_end) > query_positions[:, None]
