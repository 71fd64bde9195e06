#pragma once

#include "gated_head_norm.h"
#include "lanes.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

constexpr int64_t kLeastNormed = 1 << 12;  // elements that pay for a thread

static void norm_head(const GatedHeadNormArgs& args, int64_t token, int64_t head) {
    const float* o = args.o + token * args.o_stride + head * args.dim;
    const float* gate = args.gate + token * args.gate_stride + head * args.dim;
    float* y = args.y + (token * args.heads + head) * args.dim;
    VecF squares{};
    for (int64_t d = 0; d < args.dim; d += kWidth) {
        const VecF x = load_first(o + d, args.dim - d);
        squares += x * x;
    }
    const float scale = 1 / std::sqrt(sum_lanes(squares)[0] / static_cast<float>(args.dim) + args.eps);
    for (int64_t d = 0; d < args.dim; d += kWidth) {
        const int64_t left = args.dim - d;
        const VecF normed = load_first(o + d, left) * scale * load_first(args.weight + d, left);
        store_first(y + d, normed * sigmoid(load_first(gate + d, left)), left);
    }
}

static void gated_head_norm(const GatedHeadNormArgs& args) {
    for_each(args.tokens * args.heads, kLeastNormed / args.dim + 1,
             [&](int64_t item) { norm_head(args, item / args.heads, item % args.heads); });
}

}  // namespace milepost::MILEPOST_TARGET
