#pragma once

#include "bind.h"

namespace milepost {

static void bind_finite(py::module_& module) {
    module.def("finite_rows", [](uintptr_t x, Float type, int64_t x_stride, int64_t tokens, int64_t dim, const Rows* rows,
                                 uintptr_t finite) {
        submit_unlocked("finite_rows", table().finite_rows,
                        FiniteRowsArgs{pointer<const void>(x), type, x_stride, tokens, dim, rows, pointer<uint8_t>(finite)});
    });
    module.def("greedy", [](uintptr_t x, int64_t x_stride, int64_t rows, int64_t dim, uintptr_t largest, uintptr_t finite) {
        submit_unlocked("greedy", table().greedy,
                        GreedyArgs{pointer<const float>(x), x_stride, rows, dim, pointer<int64_t>(largest),
                                   pointer<uint8_t>(finite)});
    });
}

}  // namespace milepost
