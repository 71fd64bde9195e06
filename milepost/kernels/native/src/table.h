// One function an op, for each target that the extension was compiled for.
#pragma once

#include "limits.h"
#include "linear.h"

namespace milepost {

struct Table {
    const char* target;
    void (*linear)(const LinearArgs&);
    void (*read_all)(const ReadArgs&);
    void (*multiply_add)(const MultiplyAddArgs&);
};

// Fastest target first; those that this machine can't run are skipped.
const Table& table();
// Chooses a target by name, for tests; false where this machine can't run it.
bool choose_target(const char* target);

}  // namespace milepost
