// Which states hold finite numbers only, without what pads their tiles and pages.
#pragma once

#include "views.h"

namespace milepost {

struct FiniteStatesArgs {
    const States* states;
    int64_t num_states;
    int64_t layers;
    const int64_t* recurrent_tiles;  // [layers] the state's tile at which each layer's matrices start
    const int64_t* conv_tiles;       // [layers] and its window
    int64_t tiles;                   // of a layer's matrices
    int64_t window_size;             // elements of a layer's window
    bool* finite;                    // [num_states], written
};

}  // namespace milepost
