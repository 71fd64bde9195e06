// Each token's experts and their weights; `milepost/kernels/route` has the formula.
#pragma once

#include "matrix.h"

namespace milepost {

struct RouteArgs {
    const Matrix* gate;  // [experts, d]
    const float* bias;   // [experts]
    const float* x;
    int64_t x_stride;
    int64_t tokens;
    int64_t top_k;
    bool renormalize;
    float scaling;
    float* scores;   // scratch [tokens, score_stride]
    int64_t* ids;    // [tokens, top_k]
    float* weights;  // [tokens, top_k]

    kept_inline int64_t score_stride() const { return gate->panels() * kPanel; }
};

}  // namespace milepost
