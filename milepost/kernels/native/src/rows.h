// Rows of [tokens, dim] tensors: looked up, gathered and added.
#pragma once

#include <cstdint>

#include "views.h"

namespace milepost {

// out[t] = table[ids[t]] as float32; NaN where there is no such row, so that a wrong token fails alone.
struct EmbeddingArgs {
    const int64_t* ids;
    const void* table;  // [vocab, dim] of type
    Float type;
    int64_t vocab;
    int64_t dim;
    int64_t tokens;
    float* out;  // [tokens, dim]
};

// out[i] = x[index[i]]
struct TakeRowsArgs {
    const float* x;
    int64_t x_stride;  // elements from row to row
    const int64_t* index;
    int64_t rows;  // of out
    int64_t dim;
    float* out;  // [rows, dim]
};

// x[t] += delta[t]
struct AddArgs {
    float* x;
    int64_t x_stride;
    const float* delta;
    int64_t delta_stride;
    int64_t rows;
    int64_t dim;
};

}  // namespace milepost
