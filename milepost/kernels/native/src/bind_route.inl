#pragma once

#include "bind.h"

namespace milepost {

static void bind_route(py::module_& module) {
    module.def("route", [](const Matrix& gate, uintptr_t bias, uintptr_t x, int64_t x_stride, int64_t tokens,
                           int64_t top_k, bool renormalize, float scaling, uintptr_t scores, uintptr_t ids,
                           uintptr_t weights) {
        submit_unlocked("route", table().route,
                        RouteArgs{&gate, pointer<const float>(bias), pointer<const float>(x), x_stride, tokens, top_k,
                                  renormalize, scaling, pointer<float>(scores), pointer<int64_t>(ids),
                                  pointer<float>(weights)});
    });
}

}  // namespace milepost
