#pragma once

#include "bind.h"

namespace milepost {

static void bind_gated_activation(py::module_& module) {
    module.def("gated_activation", [](uintptr_t gate, int64_t gate_stride, uintptr_t up, int64_t up_stride, uintptr_t y,
                                      int64_t y_stride, int64_t rows, int64_t dim, bool situ, float gate_cap,
                                      float up_cap) {
        submit_unlocked("gated_activation", table().gated_activation,
                        GatedActivationArgs{pointer<const float>(gate), gate_stride, pointer<const float>(up), up_stride,
                                            pointer<float>(y), y_stride, rows, dim,
                                            Activation{situ, gate_cap, up_cap}});
    });
}

}  // namespace milepost
