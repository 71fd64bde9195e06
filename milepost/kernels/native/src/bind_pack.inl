#pragma once

#include "bind.h"
#include "pack.h"

namespace milepost {

static void bind_pack(py::module_& module) {
    const auto unlocked = py::call_guard<py::gil_scoped_release>();
    module.def(
        "pack_rows",
        [](const Matrix& matrix, int64_t item, int64_t first, int64_t count, Float type, uintptr_t rows) {
            return pack_rows(matrix, RowSpan{item, first, count}, type, pointer<const void>(rows));
        },
        unlocked);
    module.def(
        "pack_codes",
        [](const Matrix& matrix, int64_t item, int64_t first, int64_t count, uintptr_t codes) {
            pack_codes(matrix, RowSpan{item, first, count}, pointer<const uint8_t>(codes));
        },
        unlocked);
    module.def(
        "pack_scales",
        [](const Matrix& matrix, int64_t item, int64_t first, int64_t count, uintptr_t scales) {
            pack_scales(matrix, RowSpan{item, first, count}, pointer<const uint8_t>(scales));
        },
        unlocked);
}

}  // namespace milepost
