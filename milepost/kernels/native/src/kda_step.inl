// KDA's one-token step of one head, in place on its tiles.
//
// The state is read and written once and hardly anything else is done, so a decode runs at the speed of memory. Some
// rows of the [v, k] matrix are visited at once: they share the loads of what all rows need, and their sums.
#pragma once

#include "kda.h"
#include "kda_state.inl"
#include "lanes.h"
#include "scratch.h"

namespace milepost::MILEPOST_TARGET {

constexpr int kStepRows = kWidth >= 16 ? 8 : 4;  // what the registers hold

// What all rows of a head need, padded with zeros to whole vectors.
struct StepHead {
    int64_t dim;
    float* decay;      // exp(g)
    float* k;          // normed
    float* q;          // normed and scaled
    float* decayed_k;  // decay * k
    float beta;
};

static StepHead step_head(const KdaArgs& args, int64_t head, int64_t token) {
    const int64_t dim = args.states->head_dim, width = rounded_up(dim, kWidth);
    float* memory = scratch(4 * width);
    const StepHead h{dim,
                     memory,
                     memory + width,
                     memory + 2 * width,
                     memory + 3 * width,
                     args.beta[token * args.beta_stride + head]};
    const float* q = args.q + token * args.q_stride + head * dim;
    const float* k = args.k + token * args.k_stride + head * dim;
    const float* g = args.g + token * args.g_stride + head * dim;
    VecF qq{}, kk{};
    for (int64_t d = 0; d < dim; d += kWidth) {
        const VecF x = load_first(q + d, dim - d), y = load_first(k + d, dim - d);
        qq += x * x;
        kk += y * y;
    }
    const float q_norm = 1 / std::sqrt((sum_lanes(qq)[0] + args.l2_eps) * static_cast<float>(dim));
    const float k_norm = 1 / std::sqrt(sum_lanes(kk)[0] + args.l2_eps);
    for (int64_t d = 0; d < dim; d += kWidth) {
        const VecF decay = exp(load_first(g + d, dim - d));
        const VecF key = load_first(k + d, dim - d) * k_norm;
        store(h.decay + d, decay);
        store(h.k + d, key);
        store(h.q + d, load_first(q + d, dim - d) * q_norm);
        store(h.decayed_k + d, key * decay);
    }
    return h;
}

// Advances `Rows` rows of the matrix that follow one another in memory; v and o point at their elements. Whole: a row
// is a number of whole vectors.
template <int Rows, bool Fresh, bool Whole>
static inline void step_rows(const StepHead& h, float* s, const float* v, float* o) {
    float c[kWidth];
    VecF sums[Rows] = {};
    if (!Fresh) {
        for (int64_t d = 0; d < h.dim; d += kWidth) {
            const VecF k = load(h.decayed_k + d);
            for (int r = 0; r < Rows; ++r) sums[r] += load_part<Whole>(s + r * h.dim + d, h.dim - d) * k;
        }
        fold_some<Rows>(sums);
    }
    store(c, sums[0]);
    for (int r = 0; r < Rows; ++r) c[r] = h.beta * (v[r] - c[r]);
    VecF outs[Rows] = {};
    for (int64_t d = 0; d < h.dim; d += kWidth) {
        const VecF decay = load(h.decay + d), k = load(h.k + d), q = load(h.q + d);
        for (int r = 0; r < Rows; ++r) {
            float* at = s + r * h.dim + d;
            // Whatever lies in a fresh page is never read.
            const VecF kept = Fresh ? VecF{} : load_part<Whole>(at, h.dim - d) * decay;
            const VecF x = kept + k * c[r];
            store_part<Whole>(at, x, h.dim - d);
            outs[r] += x * q;
        }
    }
    fold_some<Rows>(outs);
    store_first(o, outs[0], Rows);
}

template <bool Fresh, bool Whole>
static void step_tiles(const KdaArgs& args, const StepHead& h, const int64_t* pages, int64_t first, const float* v, float* o) {
    const int64_t tile_rows = args.states->tile_rows;
    for (int64_t n = 0; n < h.dim; n += tile_rows) {
        float* s = matrix_row(*args.states, pages, first, n);
        int64_t r = 0;
        for (; r + kStepRows <= tile_rows; r += kStepRows) {
            step_rows<kStepRows, Fresh, Whole>(h, s + r * h.dim, v + n + r, o + n + r);
        }
        for (; r < tile_rows; ++r) step_rows<1, Fresh, Whole>(h, s + r * h.dim, v + n + r, o + n + r);
    }
}

static void copy_tiles(const States& states, const int64_t* from, const int64_t* to, int64_t first) {
    const size_t bytes = static_cast<size_t>(states.tile_rows * states.head_dim) * sizeof(float);
    for (int64_t n = 0; n < states.head_dim; n += states.tile_rows) {
        std::memcpy(matrix_row(states, to, first, n), matrix_row(states, from, first, n), bytes);
    }
}

// One token of a row, which may leave one snapshot.
static void step_row(const KdaArgs& args, int64_t row, int64_t head) {
    const States& states = *args.states;
    const int64_t token = args.rows->cu_seqlens[row];
    const StepHead h = step_head(args, head, token);
    const int64_t first = args.first_tile + head * (h.dim / states.tile_rows);
    const int64_t* pages = states.table + row * states.pages;
    const float* v = args.v + token * args.v_stride + head * h.dim;
    float* o = args.o + (token * args.heads + head) * h.dim;
    const bool fresh = args.rows->starts[row] == 0, whole = h.dim % kWidth == 0;
    auto* step = whole ? fresh ? step_tiles<true, true> : step_tiles<false, true>
                       : fresh ? step_tiles<true, false> : step_tiles<false, false>;
    step(args, h, pages, first, v, o);
    const int64_t left = snapshot_behind(states, token);
    if (left < states.num_snapshots && states.snapshot_ends[left] == token + 1) {
        copy_tiles(states, pages, states.snapshot_table + left * states.snapshot_pages, first);
    }
}

}  // namespace milepost::MILEPOST_TARGET
