// What the machine can do at most: the rates that kernels are held against.
#pragma once

#include <cstdint>

namespace milepost {

struct ReadArgs {
    const float* data;  // 64-byte aligned
    int64_t count;      // a multiple of 65,536
};

struct MultiplyRegistersArgs {
    int64_t rounds;
    int64_t* flops;  // done
};

}  // namespace milepost
