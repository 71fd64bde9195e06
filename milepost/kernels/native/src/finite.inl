#pragma once

#include "finite.h"
#include "lanes.h"
#include "rows.inl"

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

static bool all_finite(Float type, const void* x, int64_t at, int64_t count) {
    return type == Float::f32 ? all_finite(static_cast<const float*>(x) + at, count)
                              : all_finite(static_cast<const uint16_t*>(x) + at, count);
}

// Several threads may find fault with one: all of them write the same.
static void not_finite(bool* finite) { __atomic_store_n(finite, false, __ATOMIC_RELAXED); }

static void finite_rows(const FiniteRowsArgs& args) {
    std::memset(args.finite, true, static_cast<size_t>(args.rows ? args.rows->num_rows : args.tokens));
    for_each(args.tokens, rows_for_a_thread(args.dim), [&](int64_t t) {
        if (all_finite(args.type, args.x, t * args.x_stride, args.dim)) return;
        not_finite(args.finite + (args.rows ? args.rows->row_of(t) : t));
    });
}

static bool finite_layer(const FiniteStatesArgs& args, const int64_t* pages, int64_t layer) {
    const States& states = *args.states;
    const int64_t size = states.tile_rows * states.head_dim, width = states.conv_tile_size;
    for (int64_t t = 0; t < args.tiles; ++t) {
        if (!all_finite(states.recurrent + states.tile(pages, args.recurrent_tiles[layer] + t) * size, size)) return false;
    }
    for (int64_t done = 0; done < args.window_size; done += width) {
        const int64_t left = args.window_size - done, tile = states.tile(pages, args.conv_tiles[layer] + done / width);
        if (!all_finite(states.conv_type, states.conv, tile * width, least(left, width))) return false;
    }
    return true;
}

static void finite_states(const FiniteStatesArgs& args) {
    std::memset(args.finite, true, static_cast<size_t>(args.num_states));
    for_each(args.num_states * args.layers, 1, [&](int64_t item) {
        const int64_t state = item / args.layers;
        const int64_t* pages = args.states->table + state * args.states->pages;
        if (!finite_layer(args, pages, item % args.layers)) not_finite(args.finite + state);
    });
}

}  // namespace milepost::MILEPOST_TARGET
