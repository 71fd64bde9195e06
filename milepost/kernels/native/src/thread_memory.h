// Memory of a thread that grows with what is asked for: for kernels whose tiles are as large as the model makes them.
#pragma once

#include <cstdint>

namespace milepost {

// At least `floats` of this thread's, 64-byte aligned. What a kernel leaves there is lost at the next request.
float* thread_memory(int64_t floats);

}  // namespace milepost
