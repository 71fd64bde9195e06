// One function an op, for each target that the extension was compiled for.
#pragma once

#include "finite.h"
#include "limits.h"
#include "linear.h"
#include "mla.h"
#include "norm.h"
#include "rows.h"

namespace milepost {

struct Table {
    const char* target;
    void (*linear)(const LinearArgs&);
    void (*mla_write)(const MlaWriteArgs&);
    void (*mla_attention)(const MlaAttentionArgs&);
    void (*embedding)(const EmbeddingArgs&);
    void (*take_rows)(const TakeRowsArgs&);
    void (*add)(const AddArgs&);
    void (*rms_norm)(const RmsNormArgs&);
    void (*attn_res)(const AttnResArgs&);
    void (*finite_rows)(const FiniteRowsArgs&);
    void (*greedy)(const GreedyArgs&);
    void (*read_all)(const ReadArgs&);
    void (*multiply_add)(const MultiplyAddArgs&);
};

// Fastest target first; those that this machine can't run are skipped.
const Table& table();
// Chooses a target by name, for tests; false where this machine can't run it.
bool choose_target(const char* target);

}  // namespace milepost
