#pragma once

#include "bind.h"

namespace milepost {

static void bind_rows(py::module_& module) {
    module.def("embedding", [](uintptr_t ids, uintptr_t table_of_rows, Float type, int64_t vocab, int64_t dim,
                               int64_t tokens, uintptr_t out) {
        submit_unlocked("embedding", table().embedding,
                        EmbeddingArgs{pointer<const int64_t>(ids), pointer<const void>(table_of_rows), type, vocab, dim,
                                      tokens, pointer<float>(out)});
    });
    module.def("take_rows", [](uintptr_t x, int64_t x_stride, uintptr_t index, int64_t rows, int64_t dim, uintptr_t out) {
        submit_unlocked("take_rows", table().take_rows,
                        TakeRowsArgs{pointer<const float>(x), x_stride, pointer<const int64_t>(index), rows, dim,
                                     pointer<float>(out)});
    });
    module.def("add", [](uintptr_t x, int64_t x_stride, uintptr_t delta, int64_t delta_stride, int64_t rows, int64_t dim) {
        submit_unlocked("add", table().add,
                        AddArgs{pointer<float>(x), x_stride, pointer<const float>(delta), delta_stride, rows, dim});
    });
}

}  // namespace milepost
