// RMSNorm, and the read of Attention Residuals with the norm that follows it.
#pragma once

#include <cstdint>

namespace milepost {

// out[t] = x[t] / sqrt(mean(x[t]^2) + eps) * weight
struct RmsNormArgs {
    const float* x;
    int64_t x_stride;  // elements from row to row
    const float* weight;
    int64_t rows;
    int64_t dim;
    float eps;
    float* out;  // [rows, dim]
};

constexpr int64_t kMostSources = 64;

// Every token mixes its sources by a softmax over their scores <normed source, site>, and norms the mix.
struct AttnResArgs {
    const float* sources[kMostSources];  // [tokens, dim] each
    int64_t num_sources;
    const float* site;    // [dim]: the scores' norm weight times their projection
    const float* weight;  // [dim] of the norm of the mix
    int64_t tokens;
    int64_t dim;
    float eps;
    float* out;  // [tokens, dim]
};

}  // namespace milepost
