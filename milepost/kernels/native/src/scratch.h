// Memory of a thread for what a kernel needs between its reads and its writes.
#pragma once

#include <cstdint>

namespace milepost {

// At least `count` floats at an address that a cache line starts at. What they hold is of no meaning; they are the
// calling thread's until it asks again.
float* scratch(int64_t count);

}  // namespace milepost
