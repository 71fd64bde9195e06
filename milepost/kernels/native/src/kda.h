// KDA over a mixed batch: see milepost/kernels/kda/__init__.py for the recurrence.
#pragma once

#include "views.h"

namespace milepost {

// Longer rows are cut where the position in the sequence is a multiple of this.
constexpr int64_t kKdaChunk = 16;

struct KdaArgs {
    const Rows* rows;
    const States* states;
    int64_t first_tile;  // of the state, where this layer's matrices start
    int64_t heads;
    float l2_eps;
    // [tokens, heads, dim]; heads follow one another, tokens are so many elements apart.
    const float* q;
    int64_t q_stride;
    const float* k;
    int64_t k_stride;
    const float* v;
    int64_t v_stride;
    const float* g;
    int64_t g_stride;
    const float* beta;  // [tokens, heads]
    int64_t beta_stride;
    float* o;  // [tokens, heads, dim] without gaps
};

}  // namespace milepost
