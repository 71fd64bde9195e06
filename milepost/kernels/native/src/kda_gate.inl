#pragma once

#include "kda_gate.h"
#include "lanes.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

constexpr int64_t kLeastGates = 1 << 12;  // elements that pay for a thread

// log(1 + x) for x in [0, 1], by log((1 + s) / (1 - s)) = 2 (s + s^3 / 3 + ...) with s = x / (2 + x) <= 1 / 3.
static inline VecF log_of_one_plus(VecF x) {
    const VecF s = x / (2.0f + x), t = s * s;
    VecF p = splat(1.0f / 15);
    p = p * t + 1.0f / 13;
    p = p * t + 1.0f / 11;
    p = p * t + 1.0f / 9;
    p = p * t + 1.0f / 7;
    p = p * t + 1.0f / 5;
    p = p * t + 1.0f / 3;
    p = p * t + 1.0f;
    return 2.0f * s * p;
}

// log(1 + e^z), without overflow for large z.
static inline VecF softplus(VecF z) { return larger(z, VecF{}) + log_of_one_plus(exp(-abs(z))); }

static void gate_head(const KdaGateArgs& args, int64_t token, int64_t head) {
    const float* z = args.z + token * args.z_stride + head * args.dim;
    const float* bias = args.dt_bias + head * args.dim;
    float* g = args.g + (token * args.heads + head) * args.dim;
    const VecF rate = exp(splat(args.a_log[head]));
    for (int64_t d = 0; d < args.dim; d += kWidth) {
        const int64_t left = args.dim - d;
        const VecF x = load_first(z + d, left) + load_first(bias + d, left);
        store_first(g + d, args.bounded ? args.lower_bound * sigmoid(rate * x) : -rate * softplus(x), left);
    }
}

static void gate_betas(const KdaGateArgs& args, int64_t token) {
    const float* b = args.b + token * args.b_stride;
    float* beta = args.beta + token * args.heads;
    for (int64_t h = 0; h < args.heads; h += kWidth) {
        store_first(beta + h, sigmoid(load_first(b + h, args.heads - h)), args.heads - h);
    }
}

static void kda_gate(const KdaGateArgs& args) {
    for_each(args.tokens * args.heads, kLeastGates / args.dim + 1, [&](int64_t item) {
        const int64_t token = item / args.heads, head = item % args.heads;
        gate_head(args, token, head);
        if (head == 0) gate_betas(args, token);
    });
}

}  // namespace milepost::MILEPOST_TARGET
