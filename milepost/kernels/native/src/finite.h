// Searches rows for numbers that are not finite.
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

}  // namespace milepost
