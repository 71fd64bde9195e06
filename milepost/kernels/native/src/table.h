// One function an op, for each target that the extension was compiled for.
#pragma once

#include "linear.h"
#include "mla.h"

namespace milepost {

struct Table {
    const char* target;
    void (*linear)(const LinearArgs&);
    void (*mla_write)(const MlaWriteArgs&);
    void (*mla_attention)(const MlaAttentionArgs&);
};

// Fastest target first; those that this machine can't run are skipped.
const Table& table();
// Chooses a target by name, for tests; false where this machine can't run it.
bool choose_target(const char* target);

}  // namespace milepost
