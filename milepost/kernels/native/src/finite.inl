#pragma once

#include "finite.h"
#include "rows.inl"

namespace milepost::MILEPOST_TARGET {

constexpr uint32_t kExponent = 0x7F800000u;  // all ones in infinities and NaNs, and in nothing else

template <class T>
static inline bool is_finite(const T* x, int64_t dim) {
    VecI bad = {};
    int64_t i = 0;
    for (; i + kWidth <= dim; i += kWidth) bad |= (bits(load(x + i)) & kExponent) == kExponent;
    bool finite = true;
    for (int lane = 0; lane < kWidth; ++lane) finite &= bad[lane] == 0;
    for (; i < dim; ++i) finite &= std::isfinite(widen(x[i]));
    return finite;
}

static inline bool is_finite(const FiniteRowsArgs& args, int64_t token) {
    const int64_t at = token * args.x_stride;
    return args.type == Float::f32 ? is_finite(static_cast<const float*>(args.x) + at, args.dim)
                                   : is_finite(static_cast<const uint16_t*>(args.x) + at, args.dim);
}

static void finite_rows(const FiniteRowsArgs& args) {
    std::memset(args.finite, 1, static_cast<size_t>(args.rows ? args.rows->num_rows : args.tokens));
    parallel_for(args.tokens, rows_for_a_thread(args.dim), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) {
            if (is_finite(args, t)) continue;
            // Several threads may write the same zero.
            __atomic_store_n(args.finite + (args.rows ? args.rows->row_of(t) : t), uint8_t{0}, __ATOMIC_RELAXED);
        }
    });
}

// Lane i keeps the first largest of numbers i, i + kWidth, ..; then the lanes are compared.
static inline int64_t first_largest(const float* x, int64_t dim) {
    int64_t i = 0, best = 0;
    float most = x[0];
    if (dim >= kWidth) {
        VecF lanes = load(x);
        VecI places = {}, here = {};  // vectors from the row's start
        for (i = kWidth, here += 1; i + kWidth <= dim; i += kWidth, here += 1) {
            const VecF v = load(x + i);
            const VecI larger = v > lanes;
            lanes = select(larger, v, lanes);
            places = (here & larger) | (places & ~larger);
        }
        for (int lane = 0; lane < kWidth; ++lane) {
            const int64_t place = int64_t{places[lane]} * kWidth + lane;
            if (lanes[lane] > most || (lanes[lane] == most && place < best)) most = lanes[lane], best = place;
        }
    }
    for (; i < dim; ++i) {
        if (x[i] > most) most = x[i], best = i;
    }
    return best;
}

static void greedy(const GreedyArgs& args) {
    parallel_for(args.rows, rows_for_a_thread(args.dim), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row) {
            const float* x = args.x + row * args.x_stride;
            args.finite[row] = is_finite(x, args.dim);
            args.largest[row] = first_largest(x, args.dim);
        }
    });
}

}  // namespace milepost::MILEPOST_TARGET
