#pragma once

#include "limits.h"
#include "simd.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

// Has sums computed that nobody reads; they stay in registers until then.
template <int Count>
static inline void use(const VecF (&sums)[Count]) {
    VecF all{};
    for (int s = 0; s < Count; ++s) all += sums[s];
    asm volatile("" : : "m"(all));
}

// Reads memory from front to back on all threads, as a product with a matrix does.
static void read_all(const ReadArgs& args) {
    constexpr int kSums = 8;
    constexpr int64_t kItem = 1 << 16;
    parallel_for(args.count / kItem, 1, [&](int64_t begin, int64_t end) {
        VecF sums[kSums] = {};
        const float* last = args.data + end * kItem;
        for (const float* p = args.data + begin * kItem; p < last; p += kSums * kWidth) {
            for (int s = 0; s < kSums; ++s) sums[s] += load(p + s * kWidth);
        }
        use(sums);
    });
}

// Multiply-adds in registers alone: enough independent sums to hide the latency of each.
static void multiply_registers(const MultiplyRegistersArgs& args) {
    constexpr int kSums = kWidth == 16 ? 24 : 12;
    constexpr int64_t kItems = 64;
    for_each(kItems, 1, [&](int64_t item) {
        VecF sums[kSums];
        for (int s = 0; s < kSums; ++s) sums[s] = splat(static_cast<float>(s));
        const VecF a = splat(1.0f - 1e-9f * static_cast<float>(item)), b = splat(1e-9f);
        for (int64_t round = 0; round < args.rounds; ++round) {
            for (int s = 0; s < kSums; ++s) sums[s] = sums[s] * a + b;
        }
        use(sums);
    });
    *args.flops = kItems * args.rounds * kSums * kWidth * 2;
}

}  // namespace milepost::MILEPOST_TARGET
