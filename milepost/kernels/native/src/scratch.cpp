#include "scratch.h"

#include <cstdlib>
#include <memory>
#include <new>

namespace milepost {
namespace {

struct Free {
    void operator()(float* block) const { std::free(block); }
};

}  // namespace

float* thread_scratch() {
    thread_local std::unique_ptr<float, Free> block;
    if (!block) {
        block.reset(static_cast<float*>(std::aligned_alloc(64, kScratchFloats * sizeof(float))));
        if (!block) throw std::bad_alloc();
    }
    return block.get();
}

}  // namespace milepost
