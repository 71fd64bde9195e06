"""MLA attention for CPUs: rows in their cached form or expanded, whichever needs fewer products.

Per query, cached token and head the absorbed form costs row_dim + lora products; the expanded one
nope + rope + v, plus lora * (nope + v) once per cached token and head. So short rows attend to the
rows as they are cached, and long ones expand them; rows of one token go to compiled loops that read
the pages directly. All walk the cache by blocks with an online softmax: scratch memory doesn't grow
with the context, and not with the block either.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from milepost.kernels.jit import Kernel, arrays
from milepost.kernels.mla_attention import MlaDims, check
from milepost.kernels.mla_attention.cpu_decode import decode, decode_bf16
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
    kernel = _decode_kernel(kv.cache.dtype, dtype)
    longest = _absorbed_up_to(dims)
    decodes: list[int] = []
    for row, (begin, end) in enumerate(itertools.pairwise(ragged.offsets)):
        if kernel is not None and end == begin + 1:
            decodes.append(row)
        else:
            form = _absorbed if end - begin <= longest else _expanded
            attended = form(queries[:, begin:end], kv_b, kv, layer, row, ragged.start_list[row], dims)
            out[begin:end] = attended.transpose(0, 1)
    if kernel is not None and decodes:
        _decodes(kernel, queries, kv_b, kv, layer, ragged, decodes, dims, out)
    return out.to(q.dtype)


def _absorbed_up_to(dims: MlaDims) -> float:
    """Longest row for which the absorbed form needs no more products than the expanded one."""
    saved = (2 * dims.lora + dims.rope) - (dims.nope + dims.rope + dims.v)  # per query, key and head
    return dims.lora * (dims.nope + dims.v) / saved if saved > 0 else float("inf")


def _into_latent(queries: Tensor, kv_b: Tensor, dims: MlaDims) -> Tensor:
    """Queries [heads, n, nope + rope] that meet rows as they are cached: [heads, n, row_dim]."""
    latent = queries[..., : dims.nope] @ kv_b[:, : dims.nope]
    return torch.cat([latent, queries[..., dims.nope :]], dim=-1)


def _out_of_latent(mixed: Tensor, kv_b: Tensor, dims: MlaDims) -> Tensor:
    """Weighted means of latents [heads, n, lora] to the heads' values [heads, n, v]."""
    return mixed @ kv_b[:, dims.nope :].mT


def _decode_kernel(cache: torch.dtype, compute: torch.dtype) -> Kernel | None:
    """The compiled loops for single tokens, or None for a pair of dtypes that they don't read."""
    if cache == compute:
        return decode
    return decode_bf16 if cache == torch.bfloat16 and compute == torch.float32 else None


def _decodes(
    kernel: Kernel,
    queries: Tensor,
    kv_b: Tensor,
    kv: PagedKv,
    layer: int,
    ragged: Ragged,
    rows: list[int],
    dims: MlaDims,
    out: Tensor,
) -> None:
    """All rows of one token in one call, written to their tokens of out."""
    at = torch.tensor(rows)
    tokens, table, contexts = ragged.cu_seqlens[at], kv.block_table[at], ragged.starts[at] + 1
    latent = (
        _into_latent(queries[:, tokens], kv_b, dims).transpose(0, 1).contiguous()
    )  # [rows, heads, row_dim]
    mixed = latent.new_empty(len(rows), dims.heads, dims.lora)
    cache = kv.cache.view(torch.uint16) if kernel is decode_bf16 else kv.cache
    read = sum(ragged.start_list[row] + 1 for row in rows) * dims.heads * (kv.row_dim + dims.lora)
    kernel(read, *arrays(latent, cache, table), layer, *arrays(contexts, mixed))
    out[tokens] = _out_of_latent(mixed.transpose(0, 1), kv_b, dims).transpose(0, 1)


def _absorbed(
    queries: Tensor, kv_b: Tensor, kv: PagedKv, layer: int, row: int, start: int, dims: MlaDims
) -> Tensor:
    """One row attended in latent space: kv_b goes into the queries and comes out of the results."""

    def as_cached(cached: Tensor) -> tuple[Tensor, Tensor]:
        return cached, cached[:, : dims.lora]

    latent = _into_latent(queries, kv_b, dims)
    return _out_of_latent(_attend(latent, start, kv, layer, row, as_cached, dims.lora), kv_b, dims)


def _expanded(
    queries: Tensor, kv_b: Tensor, kv: PagedKv, layer: int, row: int, start: int, dims: MlaDims
) -> Tensor:
    """One row attended in head space: each cached row is expanded once for all of the row's queries."""
    flat_kv_b = kv_b.flatten(0, 1)  # [heads * (nope + v), lora]

    def per_head(cached: Tensor) -> tuple[Tensor, Tensor]:
        expanded = functional.linear(cached[:, : dims.lora], flat_kv_b)
        by_head = expanded.view(-1, dims.heads, dims.nope + dims.v).transpose(0, 1)  # [heads, keys, nope + v]
        k_pe = cached[:, dims.lora :].expand(dims.heads, -1, -1)
        return torch.cat([by_head[..., : dims.nope], k_pe], dim=-1), by_head[..., dims.nope :]

    return _attend(queries, start, kv, layer, row, per_head, dims.v)


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
    longest = max(1, min(_MAX_SEGMENT, _MAX_SCORES // (heads * tile)))
    softmax = OnlineSoftmax.empty(heads, n, width, queries.dtype)
    for key_begin, key_end in _segments(num_keys, longest, kv.block_size):
        cached = _cached_rows(kv, layer, row, key_begin, key_end).to(queries.dtype)
        keys, values = expand(cached)
        # Queries before this segment see none of it.
        for begin in range(max(0, key_begin - start), n, tile):
            end = min(begin + tile, n)
            # Keys after the tile's last query are left out, those after its first one masked.
            seen = min(key_end, start + end) - key_begin
            scores = queries[:, begin:end] @ keys[..., :seen, :].mT  # [heads, tile, keys]
            if key_begin + seen - 1 > start + begin:
                future = _future(start + begin, end - begin, key_begin, key_begin + seen)
                scores.masked_fill_(future, float("-inf"))
            softmax.add(slice(begin, end), scores, values[..., :seen, :])
    return softmax.result()


def _segments(num_keys: int, longest: int, block_size: int) -> Iterator[tuple[int, int]]:
    """Spans of at most `longest` keys to take at a time: whole blocks, or parts of one longer block."""
    step = longest // block_size * block_size or longest
    begin = 0
    while begin < num_keys:
        end = min(begin + step, num_keys)
        if step < block_size:
            end = min(end, (begin // block_size + 1) * block_size)
        yield begin, end
        begin = end


def _cached_rows(kv: PagedKv, layer: int, row: int, begin: int, end: int) -> Tensor:
    """Cached rows at positions begin..end - 1: whole blocks, the last cut, or a part of one.

    Returns:
        [end - begin, row_dim], a view where they lie in one block.
    """
    first, at = divmod(begin, kv.block_size)
    if at + end - begin <= kv.block_size:
        return kv.cache[int(kv.block_table[row, first]), layer, at : at + end - begin]
    blocks = kv.block_table[row, first : -(-end // kv.block_size)]
    return kv.cache[blocks, layer].flatten(0, 1)[: end - begin]


def _future(first_query: int, num_queries: int, key_begin: int, key_end: int) -> Tensor:
    """Which keys lie after which query, [queries, keys] bool."""
    query_positions = torch.arange(first_query, first_query + num_queries)
    return torch.arange(key_begin, key_end) > query_positions[:, None]
