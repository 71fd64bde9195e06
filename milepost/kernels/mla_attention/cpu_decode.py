"""Absorbed attention of single tokens, straight from the pages: the compiled loops.

A block's cached rows are used by a group of heads while they are in cache. bf16 rows come as their
16 bits and are widened once a block.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from milepost.kernels.jit import Array, Kernel, subroutine

__all__ = ["decode", "decode_bf16"]

_GROUP = 8  # heads that share a pass over the rows


def _decode(
    queries: Array,  # [rows, heads, row_dim] absorbed and scaled
    cache: Array,  # [pages, layers, block_size, row_dim]
    table: Array,  # [rows, blocks] page of each block
    layer: int,
    contexts: Array,  # [rows] tokens that each row attends to
    mixed: Array,  # [rows, heads, lora], written: softmax-weighted mean of the latents
) -> None:
    rows, heads = queries.shape[:2]
    groups = (heads + _GROUP - 1) // _GROUP
    for item in prange(rows * groups):
        row, first = item // groups, item % groups * _GROUP
        last = min(first + _GROUP, heads)
        _heads(queries[row, first:last], cache, table[row], layer, contexts[row], mixed[row, first:last])


def _decode_bf16(
    queries: Array, cache: Array, table: Array, layer: int, contexts: Array, mixed: Array
) -> None:  # as `_decode`, the cache's elements being the bits of bf16 numbers
    rows, heads = queries.shape[:2]
    groups = (heads + _GROUP - 1) // _GROUP
    for item in prange(rows * groups):
        row, first = item // groups, item % groups * _GROUP
        last = min(first + _GROUP, heads)
        _heads_bf16(queries[row, first:last], cache, table[row], layer, contexts[row], mixed[row, first:last])


@subroutine
def _heads(queries: Array, cache: Array, blocks: Array, layer: int, context: int, mixed: Array) -> None:
    """One row's group of heads: queries [group, row_dim], blocks [blocks], mixed [group, lora]."""
    block_size = cache.shape[2]
    stats = np.zeros((queries.shape[0], 2), queries.dtype)
    stats[:, 0] = -np.inf
    scores = np.empty(block_size, queries.dtype)
    mixed[:] = 0
    for begin in range(0, context, block_size):
        cached = cache[blocks[begin // block_size], layer, : min(context - begin, block_size)]
        for h in range(queries.shape[0]):
            _attend(queries[h], cached, scores, stats[h], mixed[h])
    for h in range(queries.shape[0]):
        mixed[h] /= stats[h, 1]


@subroutine
def _heads_bf16(queries: Array, cache: Array, blocks: Array, layer: int, context: int, mixed: Array) -> None:
    """As `_heads`, each block widened once for the whole group."""
    block_size = cache.shape[2]
    stats = np.zeros((queries.shape[0], 2), queries.dtype)
    stats[:, 0] = -np.inf
    scores = np.empty(block_size, queries.dtype)
    bits = np.empty((block_size, queries.shape[1]), np.uint32)
    mixed[:] = 0
    for begin in range(0, context, block_size):
        written = min(context - begin, block_size)
        _widen(cache[blocks[begin // block_size], layer, :written], bits)
        cached = bits.view(np.float32)[:written]
        for h in range(queries.shape[0]):
            _attend(queries[h], cached, scores, stats[h], mixed[h])
    for h in range(queries.shape[0]):
        mixed[h] /= stats[h, 1]


@subroutine
def _widen(halves: Array, bits: Array) -> None:
    """The upper halves of float32 numbers to whole ones."""
    for p in range(halves.shape[0]):
        for d in range(halves.shape[1]):
            bits[p, d] = np.uint32(halves[p, d]) << np.uint32(16)


@subroutine
def _attend(query: Array, cached: Array, scores: Array, stats: Array, mixed: Array) -> None:
    """Add one block's rows [written, row_dim] to one head's online softmax (arXiv:1805.02867).

    ``stats`` holds the largest score so far and the sum of exp(score - largest).
    """
    written, lora = cached.shape[0], mixed.shape[0]
    top = stats[0]
    for p in range(written):
        score = query.dtype.type(0)
        for d in range(query.shape[0]):
            score += query[d] * cached[p, d]
        scores[p] = score
        top = max(top, score)
    shrink = np.exp(stats[0] - top)
    stats[0] = top
    stats[1] *= shrink
    for d in range(lora):
        mixed[d] *= shrink
    for p in range(written):
        weight = np.exp(scores[p] - top)
        stats[1] += weight
        for d in range(lora):
            mixed[d] += weight * cached[p, d]


decode = Kernel(_decode)
decode_bf16 = Kernel(_decode_bf16)
