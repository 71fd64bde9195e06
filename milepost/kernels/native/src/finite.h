// Searches rows: for numbers that are not finite, and for the largest.
#pragma once

#include <cstdint>

#include "views.h"

namespace milepost {

// finite[r]: whether x[i] holds finite numbers only for all of row r's tokens i.
struct FiniteRowsArgs {
    const void* x;  // [tokens, dim] of type
    Float type;
    int64_t x_stride;  // elements from one to the next
    int64_t tokens;
    int64_t dim;
    const Rows* rows;  // null: every token is a row of its own
    uint8_t* finite;
};

// largest[r]: index of the first of row r's largest numbers; finite[r]: whether all are.
struct GreedyArgs {
    const float* x;
    int64_t x_stride;
    int64_t rows;
    int64_t dim;  // at least 1
    int64_t* largest;
    uint8_t* finite;
};

}  // namespace milepost
