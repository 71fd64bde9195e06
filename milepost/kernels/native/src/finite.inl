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

}  // namespace milepost::MILEPOST_TARGET
