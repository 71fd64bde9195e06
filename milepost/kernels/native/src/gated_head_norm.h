// RMSNorm over each head, times the sigmoid of a gate.
#pragma once

#include <cstdint>

namespace milepost {

struct GatedHeadNormArgs {
    const float* o;  // [tokens, heads, dim]; heads follow one another
    int64_t o_stride;
    const float* gate;  // [tokens, heads, dim], likewise
    int64_t gate_stride;
    const float* weight;  // [dim]
    float eps;
    float* y;  // [tokens, heads, dim] without gaps
    int64_t tokens;
    int64_t heads;
    int64_t dim;
};

}  // namespace milepost
