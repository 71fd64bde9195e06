#pragma once

#include "bind.h"

namespace milepost {

static void bind_linear(py::module_& module) {
    module.def("linear", [](const Matrix& matrix, uintptr_t x, int64_t x_stride, int64_t x_batch_stride, uintptr_t y,
                            int64_t y_stride, int64_t y_batch_stride, int64_t rows, bool accumulate) {
        submit_unlocked("linear", table().linear,
                        LinearArgs{&matrix, pointer<const float>(x), x_stride, x_batch_stride, pointer<float>(y), y_stride,
                                   y_batch_stride, rows, accumulate});
    });
}

}  // namespace milepost
