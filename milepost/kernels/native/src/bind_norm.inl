#pragma once

#include <pybind11/stl.h>

#include <vector>

#include "bind.h"

namespace milepost {

static void bind_norm(py::module_& module) {
    module.attr("MOST_SOURCES") = kMostSources;
    module.def("rms_norm", [](uintptr_t x, int64_t x_stride, uintptr_t weight, int64_t rows, int64_t dim, float eps,
                              uintptr_t out) {
        submit_unlocked("rms_norm", table().rms_norm,
                        RmsNormArgs{pointer<const float>(x), x_stride, pointer<const float>(weight), rows, dim, eps,
                                    pointer<float>(out)});
    });
    module.def("attn_res", [](const std::vector<uintptr_t>& sources, uintptr_t site, uintptr_t weight, int64_t tokens,
                              int64_t dim, float eps, uintptr_t out) {
        AttnResArgs args{};
        args.num_sources = static_cast<int64_t>(sources.size());
        if (args.num_sources > kMostSources) throw py::value_error("attn_res: too many sources");
        for (size_t i = 0; i < sources.size(); ++i) args.sources[i] = pointer<const float>(sources[i]);
        args.site = pointer<const float>(site);
        args.weight = pointer<const float>(weight);
        args.tokens = tokens;
        args.dim = dim;
        args.eps = eps;
        args.out = pointer<float>(out);
        submit_unlocked("attn_res", table().attn_res, args);
    });
}

}  // namespace milepost
