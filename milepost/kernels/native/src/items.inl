// How products of few rows and many are cut into items for the threads.
#pragma once

#include "panels.inl"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

constexpr int64_t kMostPanels = 8;  // of one item: enough of them share what it costs to gather rows

// Panels of an item, so that there are enough items for the threads to balance.
static int64_t panels_of_item(int64_t blocks, int64_t panels) {
    int64_t count = kMostPanels;
    while (count > 1 && blocks * pieces(panels, count) < 4 * num_threads()) count /= 2;
    return count;
}

// body(item) for all items. Chunks are small enough that items of many rows and those of few balance, and large enough
// that a claim costs little beside them. `work` is an item's multiplications, on average.
template <class Body>
static void for_each_item(int64_t items, int64_t work, Body&& body) {
    constexpr int64_t kChunkWork = 1 << 18, kLeastWork = 1 << 15;
    const int64_t even = pieces(items, 4 * num_threads());
    const int64_t fit = kChunkWork / (work + 1) + 1;
    run_chunks(items, items * work < kLeastWork ? items : least(fit, even), [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) body(item);
    });
}

}  // namespace milepost::MILEPOST_TARGET
