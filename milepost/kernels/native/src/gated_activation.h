// y = act(gate, up), row by row; `milepost/kernels/gated_activation` has the formulas.
#pragma once

#include <cstdint>

namespace milepost {

struct Activation {
    bool situ;  // otherwise silu, which has no caps
    float gate_cap;
    float up_cap;
};

struct GatedActivationArgs {
    const float* gate;
    int64_t gate_stride;  // elements from row to row
    const float* up;
    int64_t up_stride;
    float* y;
    int64_t y_stride;
    int64_t rows;
    int64_t dim;
    Activation activation;
};

}  // namespace milepost
