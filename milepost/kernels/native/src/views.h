// What kernels see of a step: its rows, and the pages that hold their states and KV.
//
// `milepost/kernels/paging.py` says what the numbers mean. Kernels keep pointers to these structs, never copies of what
// they hold: a tape that is played again finds the next step's numbers there.
#pragma once

#include <cstdint>

#include "counts.h"

namespace milepost {

enum class Float : int { f32 = 0, bf16 = 1 };

kept_inline int64_t bytes_of(Float type) { return type == Float::f32 ? 4 : 2; }

// Ragged: row r's tokens are cu_seqlens[r] .. cu_seqlens[r + 1] of the step's; its first stands at position starts[r].
struct Rows {
    int64_t num_rows = 0;
    int64_t num_tokens = 0;
    const int64_t* cu_seqlens = nullptr;
    const int64_t* starts = nullptr;

    // The row that a token of the step belongs to.
    kept_inline int64_t row_of(int64_t token) const {
        int64_t low = 0, high = num_rows;  // cu_seqlens[low] <= token < cu_seqlens[high]
        while (high - low > 1) {
            const int64_t middle = (low + high) / 2;
            (cu_seqlens[middle] <= token ? low : high) = middle;
        }
        return low;
    }
};

// PagedState: tile t of row r is number table[r * pages + t / tiles_per_page] * tiles_per_page + t % tiles_per_page.
struct States {
    float* recurrent = nullptr;  // [num_tiles, tile_rows, head_dim]
    void* conv = nullptr;        // [num_tiles, conv_tile_size] of conv_type
    Float conv_type = Float::f32;
    int64_t tile_rows = 0;
    int64_t head_dim = 0;
    int64_t conv_tile_size = 0;  // elements
    int64_t tiles_per_page = 1;
    int64_t pages = 0;  // from one row of the table to the next
    const int64_t* table = nullptr;  // [rows, pages]
    // What the step leaves behind: snapshot s is row snapshot_rows[s]'s state after the first snapshot_ends[s] of the
    // step's tokens. Sorted by end.
    int64_t num_snapshots = 0;
    const int64_t* snapshot_rows = nullptr;
    const int64_t* snapshot_ends = nullptr;
    const int64_t* snapshot_table = nullptr;  // [snapshots, pages]
    int64_t snapshot_pages = 0;               // from one row of it to the next

    kept_inline int64_t tile(const int64_t* pages_of_state, int64_t t) const {
        return pages_of_state[t / tiles_per_page] * tiles_per_page + t % tiles_per_page;
    }
};

// PagedKv: token p of row r is cache[table[r * blocks + p / block_size], layer, p % block_size].
struct Kv {
    void* cache = nullptr;  // [num_pages, layers, block_size, row_dim] of type
    Float type = Float::f32;
    int64_t layers = 0;
    int64_t block_size = 1;
    int64_t row_dim = 0;
    const int64_t* table = nullptr;  // [rows, blocks]
    int64_t blocks = 0;
    int64_t page_stride = 0;   // elements from one page to the next: a page may hold more than its block
    int64_t layer_stride = 0;  // elements from one layer to the next
};

}  // namespace milepost
