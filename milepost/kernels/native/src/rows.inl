#pragma once

#include "rows.h"
#include "simd.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

constexpr int64_t kLeastElements = 1 << 14;  // moved elements that pay for a thread

// Rows of `dim` elements that make a chunk worth a thread.
static inline int64_t rows_for_a_thread(int64_t dim) { return kLeastElements / (dim + 1) + 1; }

template <class T>
static inline void widen_row(const T* from, int64_t dim, float* to) {
    int64_t i = 0;
    for (; i + kWidth <= dim; i += kWidth) store(to + i, load(from + i));
    for (; i < dim; ++i) to[i] = widen(from[i]);
}

static void embedding(const EmbeddingArgs& args) {
    const int64_t dim = args.dim;
    for_each(args.tokens, rows_for_a_thread(dim), [&](int64_t t) {
        const int64_t id = args.ids[t];
        float* out = args.out + t * dim;
        if (id < 0 || id >= args.vocab) {
            for (int64_t i = 0; i < dim; ++i) out[i] = NAN;
        } else if (args.type == Float::f32) {
            std::memcpy(out, static_cast<const float*>(args.table) + id * dim, dim * sizeof(float));
        } else {
            widen_row(static_cast<const uint16_t*>(args.table) + id * dim, dim, out);
        }
    });
}

static void take_rows(const TakeRowsArgs& args) {
    for_each(args.rows, rows_for_a_thread(args.dim), [&](int64_t row) {
        std::memcpy(args.out + row * args.dim, args.x + args.index[row] * args.x_stride, args.dim * sizeof(float));
    });
}

static void add(const AddArgs& args) {
    for_each(args.rows, rows_for_a_thread(args.dim), [&](int64_t row) {
        float* x = args.x + row * args.x_stride;
        const float* delta = args.delta + row * args.delta_stride;
        int64_t i = 0;
        for (; i + kWidth <= args.dim; i += kWidth) store(x + i, load(x + i) + load(delta + i));
        for (; i < args.dim; ++i) x[i] += delta[i];
    });
}

}  // namespace milepost::MILEPOST_TARGET
