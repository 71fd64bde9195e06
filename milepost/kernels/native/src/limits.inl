#pragma once

#include "limits.h"
#include "simd.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

// Reads memory from front to back on all threads, as a product with a matrix does.
static void read_all(const ReadArgs& args) {
    constexpr int64_t kStrip = 8 * kWidth;
    constexpr int64_t kItem = 1 << 16;
    const int64_t items = args.count / kItem;
    float sums[64] = {};
    parallel_for(items, 1, [&](int64_t begin, int64_t end) {
        VecF total[8] = {};
        const float* last = args.data + end * kItem;
        for (const float* p = args.data + begin * kItem; p < last; p += kStrip) {
            for (int v = 0; v < 8; ++v) total[v] += load(p + v * kWidth);
        }
        VecF all{};
        for (int v = 0; v < 8; ++v) all += total[v];
        sums[begin % 64] = sum(all);
    });
    *args.sum = sums[0] + sums[1];
}

// Multiply-adds in registers alone: enough independent sums to hide the latency of each.
static void multiply_registers(const MultiplyRegistersArgs& args) {
    constexpr int kSums = kWidth == 16 ? 24 : 12;
    const int64_t items = 64;
    float sums[items] = {};
    for_each(items, 1, [&](int64_t item) {
        VecF total[kSums];
        for (int s = 0; s < kSums; ++s) total[s] = splat(static_cast<float>(s));
        const VecF a = splat(1.0f - 1e-9f * static_cast<float>(item)), b = splat(1e-9f);
        for (int64_t round = 0; round < args.rounds; ++round) {
            for (int s = 0; s < kSums; ++s) total[s] = total[s] * a + b;
        }
        VecF all{};
        for (int s = 0; s < kSums; ++s) all += total[s];
        sums[item] = sum(all);
    });
    *args.flops = items * args.rounds * kSums * kWidth * 2;
    *args.sum = sums[0] + sums[items - 1];
}

}  // namespace milepost::MILEPOST_TARGET
