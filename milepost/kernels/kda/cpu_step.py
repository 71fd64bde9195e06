"""KDA's one-token step, in place on tiles: the compiled loops.

A decode reads and writes each state once and does almost nothing else, so it runs at the speed of
memory as long as each row of a tile is touched in one visit: decay and read with k, then correct and
read with q while the row is still in the first cache. Tiles may lie on any pages.
"""

from __future__ import annotations

from numba import prange

from milepost.kernels.jit import Array, Kernel

__all__ = ["step_tiles"]


def _step_tiles(
    tiles: Array,  # [num_tiles, tile_rows, dim]
    table: Array,  # [rows, pages_per_state]
    tiles_per_page: int,
    first_tile: int,
    fresh: Array,  # [rows] whether the row's state starts from zero
    q: Array,  # [rows, heads, dim] normed and scaled
    k: Array,  # [rows, heads, dim] normed
    v: Array,  # [rows, heads, dim]
    decay: Array,  # [rows, heads, dim] exp(g)
    beta: Array,  # [rows, heads]
    o: Array,  # [rows, heads, dim], written
) -> None:
    rows, heads, dim = q.shape
    tile_rows = tiles.shape[1]
    per_head = dim // tile_rows
    for item in prange(rows * heads * per_head):
        row = item // (heads * per_head)
        tile = item % (heads * per_head)
        head = tile // per_head
        at = first_tile + tile
        s = tiles[table[row, at // tiles_per_page] * tiles_per_page + at % tiles_per_page]
        q_head, k_head, a_head = q[row, head], k[row, head], decay[row, head]
        for i in range(tile_rows):
            s_row = s[i]
            n = (tile % per_head) * tile_rows + i  # row of the head's [v, k] matrix
            seen = v[row, head, n] * 0
            if fresh[row]:
                s_row[:] = 0  # whatever lies in a fresh page is never read
                seen = beta[row, head] * 0
            else:
                for d in range(dim):
                    x = s_row[d] * a_head[d]
                    s_row[d] = x
                    seen += x * k_head[d]
            c = beta[row, head] * (v[row, head, n] - seen)
            out = c * 0
            for d in range(dim):
                x = s_row[d] + c * k_head[d]
                s_row[d] = x
                out += x * q_head[d]
            o[row, head, n] = out


step_tiles = Kernel(_step_tiles)
