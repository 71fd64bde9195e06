#pragma once

#include "bind.h"
#include "views.h"

namespace milepost {

static void bind_mla(py::module_& module) {
    module.attr("QUERY_LANES") = kQueryLanes;
    module.attr("MOST_PARTS") = kMostParts;
    module.def("mla_write", [](uintptr_t latent, int64_t latent_stride, uintptr_t k_pe, int64_t k_pe_stride, uintptr_t weight,
                               int64_t lora, float eps, const Kv& kv, int64_t layer, const Rows& rows) {
        submit_unlocked("mla_write", table().mla_write,
                        MlaWriteArgs{pointer<const float>(latent), latent_stride, pointer<const float>(k_pe), k_pe_stride,
                                     pointer<const float>(weight), lora, eps, &kv, layer, &rows});
    });
    module.def("mla_attention", [](uintptr_t q, int64_t q_stride, const Matrix& k_b, const Matrix& v_b, uintptr_t gate,
                                   int64_t gate_stride, const Kv& kv, int64_t layer, const Rows& rows, uintptr_t out,
                                   int64_t absorbed_up_to, int64_t pass_tokens, uintptr_t latent, uintptr_t mixed,
                                   uintptr_t parts, int64_t num_parts) {
        submit_unlocked("mla_attention", table().mla_attention,
                        MlaAttentionArgs{pointer<const float>(q), q_stride, &k_b, &v_b, pointer<const float>(gate),
                                         gate_stride, &kv, layer, &rows, pointer<float>(out), absorbed_up_to, pass_tokens,
                                         pointer<float>(latent), pointer<float>(mixed), pointer<float>(parts), num_parts});
    });
}

}  // namespace milepost
