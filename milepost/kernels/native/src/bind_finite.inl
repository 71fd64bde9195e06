#pragma once

#include "bind.h"

namespace milepost {

static void bind_finite(py::module_& module) {
    module.def("finite_rows", [](uintptr_t x, Float type, int64_t x_stride, int64_t tokens, int64_t dim, const Rows* rows,
                                 uintptr_t finite) {
        submit_unlocked("finite_rows", table().finite_rows,
                        FiniteRowsArgs{pointer<const void>(x), type, x_stride, tokens, dim, rows, pointer<uint8_t>(finite)});
    });
}

}  // namespace milepost
