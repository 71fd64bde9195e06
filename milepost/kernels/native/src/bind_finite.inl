#pragma once

#include "bind.h"

namespace milepost {

static void bind_finite(py::module_& module) {
    module.def("finite_rows", [](uintptr_t x, Float type, int64_t x_stride, int64_t tokens, int64_t dim, const Rows* rows,
                                 uintptr_t finite) {
        submit_unlocked("finite_rows", table().finite_rows,
                        FiniteRowsArgs{pointer<const void>(x), type, x_stride, tokens, dim, rows, pointer<bool>(finite)});
    });
    module.def("finite_states", [](const States& states, int64_t num_states, int64_t layers, uintptr_t recurrent_tiles,
                                   uintptr_t conv_tiles, int64_t tiles, int64_t window_size, uintptr_t finite) {
        submit_unlocked("finite_states", table().finite_states,
                        FiniteStatesArgs{&states, num_states, layers, pointer<const int64_t>(recurrent_tiles),
                                         pointer<const int64_t>(conv_tiles), tiles, window_size, pointer<bool>(finite)});
    });
}

}  // namespace milepost
