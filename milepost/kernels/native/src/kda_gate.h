// KDA's log decay and beta: see milepost/kernels/kda_gate/__init__.py.
#pragma once

#include <cstdint>

namespace milepost {

struct KdaGateArgs {
    const float* z;  // [tokens, heads, dim]
    int64_t z_stride;
    const float* b;  // [tokens, heads]
    int64_t b_stride;
    const float* dt_bias;  // [heads, dim]
    const float* a_log;    // [heads]
    bool bounded;
    float lower_bound;
    float* g;     // [tokens, heads, dim] without gaps
    float* beta;  // [tokens, heads] without gaps
    int64_t tokens;
    int64_t heads;
    int64_t dim;
};

}  // namespace milepost
