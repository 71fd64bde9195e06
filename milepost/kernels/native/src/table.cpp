#include "table.h"

#include <cstring>

namespace milepost {

#ifdef MILEPOST_HAS_AVX512
namespace avx512 { extern const Table table; }
#endif
#ifdef MILEPOST_HAS_AVX2
namespace avx2 { extern const Table table; }
#endif
namespace baseline { extern const Table table; }

namespace {

struct Choice {
    const Table* table;
    bool runs;
};

const Choice* choices(int& count) {
    static const Choice all[] = {
#ifdef MILEPOST_HAS_AVX512
        {&avx512::table, __builtin_cpu_supports("x86-64-v4") != 0},
#endif
#ifdef MILEPOST_HAS_AVX2
        {&avx2::table, __builtin_cpu_supports("x86-64-v3") != 0},
#endif
        {&baseline::table, true},
    };
    count = sizeof all / sizeof all[0];
    return all;
}

const Table* first_that_runs() {
    int count;
    const Choice* all = choices(count);
    while (!all->runs) ++all;
    return all->table;
}

const Table* chosen = first_that_runs();

}  // namespace

const Table& table() { return *chosen; }

bool choose_target(const char* target) {
    int count;
    const Choice* all = choices(count);
    for (int i = 0; i < count; ++i) {
        if (std::strcmp(all[i].table->target, target) == 0 && all[i].runs) {
            chosen = all[i].table;
            return true;
        }
    }
    return false;
}

}  // namespace milepost
