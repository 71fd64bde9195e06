// One function an op, for each target that the extension was compiled for.
#pragma once

#include "finite.h"
#include "finite_states.h"
#include "gated_activation.h"
#include "gated_head_norm.h"
#include "grouped_experts.h"
#include "kda.h"
#include "kda_gate.h"
#include "limits.h"
#include "linear.h"
#include "mla.h"
#include "norm.h"
#include "route.h"
#include "rows.h"
#include "short_conv.h"

namespace milepost {

struct Table {
    const char* target;
    void (*gated_activation)(const GatedActivationArgs&);
    void (*grouped_experts)(const GroupedExpertsArgs&);
    void (*linear)(const LinearArgs&);
    void (*mla_write)(const MlaWriteArgs&);
    void (*mla_attention)(const MlaAttentionArgs&);
    void (*embedding)(const EmbeddingArgs&);
    void (*take_rows)(const TakeRowsArgs&);
    void (*add)(const AddArgs&);
    void (*rms_norm)(const RmsNormArgs&);
    void (*attn_res)(const AttnResArgs&);
    void (*finite_rows)(const FiniteRowsArgs&);
    void (*route)(const RouteArgs&);
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
