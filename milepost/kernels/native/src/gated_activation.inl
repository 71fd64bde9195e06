#pragma once

#include "gated_activation.h"
#include "simd.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

template <bool Situ>
static inline VecF activated(VecF gate, VecF up, const Activation& act) {
    if constexpr (Situ) {
        const VecF capped_gate = act.gate_cap * tanh(gate / act.gate_cap);
        const VecF capped_up = act.up_cap * tanh(up / act.up_cap);
        return capped_gate * sigmoid(gate) * capped_up;
    }
    return silu(gate) * up;
}

// Elements of one row; those beyond whole vectors go through a vector of their own.
template <bool Situ>
static void activate_row(const float* gate, const float* up, float* y, int64_t dim, const Activation& act) {
    int64_t i = 0;
    for (; i + kWidth <= dim; i += kWidth) store(y + i, activated<Situ>(load(gate + i), load(up + i), act));
    if (i == dim) return;
    float last_gate[kWidth] = {}, last_up[kWidth] = {}, last[kWidth];
    const size_t bytes = static_cast<size_t>(dim - i) * sizeof(float);
    std::memcpy(last_gate, gate + i, bytes);
    std::memcpy(last_up, up + i, bytes);
    store(last, activated<Situ>(load(last_gate), load(last_up), act));
    std::memcpy(y + i, last, bytes);
}

static inline void activate_row(const float* gate, const float* up, float* y, int64_t dim, const Activation& act) {
    if (act.situ) return activate_row<true>(gate, up, y, dim, act);
    activate_row<false>(gate, up, y, dim, act);
}

static void gated_activation(const GatedActivationArgs& args) {
    constexpr int64_t kBlock = 512;  // elements of a row; a multiple of every width, so a block's place changes nothing
    constexpr int64_t kGrain = 4;    // blocks that pay for a thread
    const int64_t blocks = pieces(args.dim, kBlock);
    for_each(args.rows * blocks, kGrain, [&](int64_t item) {
        const int64_t row = item / blocks, first = item % blocks * kBlock;
        activate_row(args.gate + row * args.gate_stride + first, args.up + row * args.up_stride + first,
                     args.y + row * args.y_stride + first, least(kBlock, args.dim - first), args.activation);
    });
}

}  // namespace milepost::MILEPOST_TARGET
