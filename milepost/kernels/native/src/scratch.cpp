#include "scratch.h"

#include <cstdlib>
#include <new>

namespace milepost {
namespace {

struct Memory {
    float* data = nullptr;
    int64_t count = 0;

    ~Memory() { std::free(data); }
};

thread_local Memory memory_of_thread;

}  // namespace

float* scratch(int64_t count) {
    Memory& memory = memory_of_thread;
    if (count > memory.count) {
        std::free(memory.data);
        const auto bytes = static_cast<size_t>((count * 4 + 63) / 64 * 64);
        memory.data = static_cast<float*>(std::aligned_alloc(64, bytes));
        memory.count = memory.data == nullptr ? 0 : count;
        if (memory.data == nullptr) throw std::bad_alloc();
    }
    return memory.data;
}

}  // namespace milepost
