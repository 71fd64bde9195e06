// One function an op, for each target that the extension was compiled for.
#pragma once

#include "gated_activation.h"
#include "grouped_experts.h"
#include "limits.h"
#include "linear.h"
#include "route.h"

namespace milepost {

struct Table {
    const char* target;
    void (*gated_activation)(const GatedActivationArgs&);
    void (*grouped_experts)(const GroupedExpertsArgs&);
    void (*linear)(const LinearArgs&);
    void (*route)(const RouteArgs&);
    void (*read_all)(const ReadArgs&);
    void (*multiply_add)(const MultiplyAddArgs&);
};

// Fastest target first; those that this machine can't run are skipped.
const Table& table();
// Chooses a target by name, for tests; false where this machine can't run it.
bool choose_target(const char* target);

}  // namespace milepost
