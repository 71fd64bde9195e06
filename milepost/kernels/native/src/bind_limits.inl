#pragma once

#include "bind.h"

namespace milepost {

static void bind_limits(py::module_& module) {
    module.def("read_all", [](uintptr_t data, int64_t count) {
        submit_unlocked("read_all", table().read_all, ReadArgs{pointer<const float>(data), count});
    });
    module.def("multiply_registers", [](int64_t rounds, uintptr_t flops) {
        submit_unlocked("multiply_registers", table().multiply_registers,
                        MultiplyRegistersArgs{rounds, pointer<int64_t>(flops)});
    });
}

}  // namespace milepost
