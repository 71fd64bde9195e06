// One function an op, for each target that the extension was compiled for.
#pragma once

#include "finite_states.h"
#include "gated_head_norm.h"
#include "kda.h"
#include "kda_gate.h"
#include "limits.h"
#include "linear.h"
#include "short_conv.h"

namespace milepost {

struct Table {
    const char* target;
    void (*linear)(const LinearArgs&);
    void (*short_conv)(const ShortConvArgs&);
    void (*kda_gate)(const KdaGateArgs&);
    void (*kda)(const KdaArgs&);
    void (*gated_head_norm)(const GatedHeadNormArgs&);
    void (*finite_states)(const FiniteStatesArgs&);
    void (*read_all)(const ReadArgs&);
    void (*multiply_add)(const MultiplyAddArgs&);
};

// Fastest target first; those that this machine can't run are skipped.
const Table& table();
// Chooses a target by name, for tests; false where this machine can't run it.
bool choose_target(const char* target);

}  // namespace milepost
