// Causal depthwise convolution over time, then SiLU: see milepost/kernels/short_conv/__init__.py.
#pragma once

#include "views.h"

namespace milepost {

constexpr int64_t kMostTaps = 16;

struct ShortConvArgs {
    const Rows* rows;
    const States* states;
    int64_t first_tile;  // of the state, where this layer's window starts
    const float* u;      // [tokens, channels]
    int64_t u_stride;
    const float* weight;  // [taps, channels]
    float* y;             // [tokens, channels] without gaps
    int64_t tokens;
    int64_t channels;
    int64_t taps;
};

}  // namespace milepost
