#pragma once

#include "bind.h"

namespace milepost {

static void bind_grouped_experts(py::module_& module) {
    module.attr("LEAST_BLOCK_ROWS") = kLeastBlockRows;
    module.def("grouped_experts",
               [](const Matrix& w1, const Matrix& w3, const Matrix& w2, uintptr_t x, int64_t x_stride, uintptr_t ids,
                  uintptr_t weights, int64_t tokens, int64_t top_k, bool situ, float gate_cap, float up_cap, uintptr_t out,
                  int64_t out_stride, uintptr_t order, uintptr_t ends, uintptr_t blocks, uintptr_t hidden) {
                   submit_unlocked("grouped_experts", table().grouped_experts,
                                   GroupedExpertsArgs{&w1, &w3, &w2, pointer<const float>(x), x_stride,
                                                      pointer<const int64_t>(ids), pointer<const float>(weights), tokens,
                                                      top_k, Activation{situ, gate_cap, up_cap}, pointer<float>(out),
                                                      out_stride, pointer<int64_t>(order), pointer<int64_t>(ends),
                                                      pointer<int64_t>(blocks), pointer<float>(hidden)});
               });
}

}  // namespace milepost
