// Which rows, and which states, hold finite numbers only.
#pragma once

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
    bool* finite;
};

// The same of states, without what pads their tiles and pages.
struct FiniteStatesArgs {
    const States* states;
    int64_t num_states;
    int64_t layers;
    const int64_t* recurrent_tiles;  // [layers] the state's tile at which each layer's matrices start
    const int64_t* conv_tiles;       // [layers] and its window
    int64_t tiles;                   // of a layer's matrices
    int64_t window_size;             // elements of a layer's window
    bool* finite;                    // [num_states]
};

}  // namespace milepost
