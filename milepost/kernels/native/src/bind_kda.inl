#pragma once

#include "bind.h"

namespace milepost {

static void bind_kda(py::module_& module) {
    module.attr("KDA_CHUNK") = kKdaChunk;
    module.attr("MOST_TAPS") = kMostTaps;
    module.def("short_conv", [](const Rows& rows, const States& states, int64_t first_tile, uintptr_t u, int64_t u_stride,
                                uintptr_t weight, uintptr_t y, int64_t tokens, int64_t channels, int64_t taps) {
        submit_unlocked("short_conv", table().short_conv,
                        ShortConvArgs{&rows, &states, first_tile, pointer<const float>(u), u_stride,
                                      pointer<const float>(weight), pointer<float>(y), tokens, channels, taps});
    });
    module.def("kda_gate", [](uintptr_t z, int64_t z_stride, uintptr_t b, int64_t b_stride, uintptr_t dt_bias, uintptr_t a_log,
                              bool bounded, float lower_bound, uintptr_t g, uintptr_t beta, int64_t tokens, int64_t heads,
                              int64_t dim) {
        submit_unlocked("kda_gate", table().kda_gate,
                        KdaGateArgs{pointer<const float>(z), z_stride, pointer<const float>(b), b_stride,
                                    pointer<const float>(dt_bias), pointer<const float>(a_log), bounded, lower_bound,
                                    pointer<float>(g), pointer<float>(beta), tokens, heads, dim});
    });
    module.def("kda", [](const Rows& rows, const States& states, int64_t first_tile, int64_t heads, float l2_eps, uintptr_t q,
                         int64_t q_stride, uintptr_t k, int64_t k_stride, uintptr_t v, int64_t v_stride, uintptr_t g,
                         int64_t g_stride, uintptr_t beta, int64_t beta_stride, uintptr_t o) {
        submit_unlocked("kda", table().kda,
                        KdaArgs{&rows, &states, first_tile, heads, l2_eps, pointer<const float>(q), q_stride,
                                pointer<const float>(k), k_stride, pointer<const float>(v), v_stride, pointer<const float>(g),
                                g_stride, pointer<const float>(beta), beta_stride, pointer<float>(o)});
    });
    module.def("gated_head_norm", [](uintptr_t o, int64_t o_stride, uintptr_t gate, int64_t gate_stride, uintptr_t weight,
                                     float eps, uintptr_t y, int64_t tokens, int64_t heads, int64_t dim) {
        submit_unlocked("gated_head_norm", table().gated_head_norm,
                        GatedHeadNormArgs{pointer<const float>(o), o_stride, pointer<const float>(gate), gate_stride,
                                          pointer<const float>(weight), eps, pointer<float>(y), tokens, heads, dim});
    });
}

}  // namespace milepost
