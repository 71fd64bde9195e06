// out[t] = sum_i weights[t, i] * w2_e act(w1_e x[t], w3_e x[t]), e = ids[t, i], summed by ascending e.
#pragma once

#include "gated_activation.h"
#include "matrix.h"

namespace milepost {

// Choices are computed in blocks of at least so many where an expert has more.
constexpr int64_t kLeastBlockRows = 32;

struct GroupedExpertsArgs {
    const Matrix* w1;  // [experts, intermediate, width]
    const Matrix* w3;
    const Matrix* w2;  // [experts, width, intermediate]
    const float* x;
    int64_t x_stride;
    const int64_t* ids;    // [tokens, top_k]
    const float* weights;  // [tokens, top_k]
    int64_t tokens;
    int64_t top_k;
    Activation activation;
    float* out;
    int64_t out_stride;
    // Scratch. A choice is token * top_k + i.
    int64_t* order;   // [choices] by expert, then by token
    int64_t* ends;    // [experts] where an expert's choices end in `order`
    int64_t* blocks;  // [experts + choices / kLeastBlockRows] where the blocks of choices begin that are computed together
    float* hidden;    // [choices, hidden_stride] in the order of `order`, the router's weight multiplied in

    kept_inline int64_t choices() const { return tokens * top_k; }
    kept_inline int64_t hidden_stride() const { return w1->panels() * kPanel; }
};

}  // namespace milepost
