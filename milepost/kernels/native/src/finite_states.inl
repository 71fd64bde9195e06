#pragma once

#include "finite_states.h"
#include "lanes.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

// x - x is zero for finite x and NaN else.
template <class T>
static bool all_finite(const T* x, int64_t count) {
    VecF doubt[4] = {};
    int64_t i = 0;
    for (; i + 4 * kWidth <= count; i += 4 * kWidth) {
        for (int n = 0; n < 4; ++n) {
            const VecF v = load(x + i + n * kWidth);
            doubt[n] += v - v;
        }
    }
    for (; i < count; i += kWidth) {
        const VecF v = load_first(x + i, count - i);
        doubt[0] += v - v;
    }
    return sum_lanes(doubt[0] + doubt[1] + doubt[2] + doubt[3])[0] == 0;
}

template <class T>
static bool finite_window(const States& states, const int64_t* pages, int64_t first_tile, int64_t size) {
    const int64_t width = states.conv_tile_size;
    for (int64_t done = 0; done < size; done += width) {
        const T* tile = static_cast<const T*>(states.conv) + states.tile(pages, first_tile + done / width) * width;
        if (!all_finite(tile, size - done < width ? size - done : width)) return false;
    }
    return true;
}

static bool finite_layer(const FiniteStatesArgs& args, const int64_t* pages, int64_t layer) {
    const States& states = *args.states;
    const int64_t size = states.tile_rows * states.head_dim;
    for (int64_t t = 0; t < args.tiles; ++t) {
        if (!all_finite(states.recurrent + states.tile(pages, args.recurrent_tiles[layer] + t) * size, size)) return false;
    }
    return states.conv_type == Float::f32 ? finite_window<float>(states, pages, args.conv_tiles[layer], args.window_size)
                                          : finite_window<uint16_t>(states, pages, args.conv_tiles[layer], args.window_size);
}

static void finite_states(const FiniteStatesArgs& args) {
    for (int64_t s = 0; s < args.num_states; ++s) args.finite[s] = true;
    parallel_for(args.num_states * args.layers, 1, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
            const int64_t state = item / args.layers;
            const int64_t* pages = args.states->table + state * args.states->pages;
            // Two threads may find fault with one state: both write the same.
            if (!finite_layer(args, pages, item % args.layers)) __atomic_store_n(args.finite + state, false, __ATOMIC_RELAXED);
        }
    });
}

}  // namespace milepost::MILEPOST_TARGET
