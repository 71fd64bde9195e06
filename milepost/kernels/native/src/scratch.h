// Memory of a thread for what a kernel needs while it runs: no call allocates.
#pragma once

#include <cstdint>

namespace milepost {

constexpr int64_t kScratchFloats = 256 * 1024;

// This thread's, 64-byte aligned, kScratchFloats long. Whatever a kernel leaves there is lost at the next kernel.
float* thread_scratch();

}  // namespace milepost
