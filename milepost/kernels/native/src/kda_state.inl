// Where the rows of a head's [v, k] matrix lie, and which snapshots a row leaves.
#pragma once

#include "views.h"

namespace milepost::MILEPOST_TARGET {

// Row n of the matrix whose first tile is `first` of the state on these pages.
static inline float* matrix_row(const States& states, const int64_t* pages, int64_t first, int64_t n) {
    const int64_t tile = states.tile(pages, first + n / states.tile_rows);
    return states.recurrent + (tile * states.tile_rows + n % states.tile_rows) * states.head_dim;
}

// Number of the first snapshot whose end lies behind this offset into the step's tokens.
static inline int64_t snapshot_behind(const States& states, int64_t token) {
    int64_t low = 0, high = states.num_snapshots;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (states.snapshot_ends[middle] > token) high = middle;
        else low = middle + 1;
    }
    return low;
}

}  // namespace milepost::MILEPOST_TARGET
