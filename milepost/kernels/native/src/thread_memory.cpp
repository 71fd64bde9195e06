#include "thread_memory.h"

#include <cstdlib>
#include <memory>
#include <new>

namespace milepost {
namespace {

struct Free {
    void operator()(float* block) const { std::free(block); }
};

struct Grown {
    std::unique_ptr<float, Free> block;
    int64_t floats = 0;
};

}  // namespace

float* thread_memory(int64_t floats) {
    thread_local Grown memory;
    if (memory.floats < floats) {
        const int64_t rounded = (floats + 15) / 16 * 16;
        memory.block.reset();
        memory.floats = 0;
        memory.block.reset(static_cast<float*>(std::aligned_alloc(64, static_cast<size_t>(rounded) * sizeof(float))));
        if (!memory.block) throw std::bad_alloc();
        memory.floats = rounded;
    }
    return memory.block.get();
}

}  // namespace milepost
