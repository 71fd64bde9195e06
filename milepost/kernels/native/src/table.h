// One function an op, for each target that the extension was compiled for.
#pragma once

#include "finite.h"
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
    void (*add)(const AddArgs&);
    void (*attn_res)(const AttnResArgs&);
    void (*embedding)(const EmbeddingArgs&);
    void (*finite_rows)(const FiniteRowsArgs&);
    void (*finite_states)(const FiniteStatesArgs&);
    void (*gated_activation)(const GatedActivationArgs&);
    void (*gated_head_norm)(const GatedHeadNormArgs&);
    void (*grouped_experts)(const GroupedExpertsArgs&);
    void (*kda)(const KdaArgs&);
    void (*kda_gate)(const KdaGateArgs&);
    void (*linear)(const LinearArgs&);
    void (*mla_attention)(const MlaAttentionArgs&);
    void (*mla_write)(const MlaWriteArgs&);
    void (*multiply_registers)(const MultiplyRegistersArgs&);
    void (*read_all)(const ReadArgs&);
    void (*rms_norm)(const RmsNormArgs&);
    void (*route)(const RouteArgs&);
    void (*short_conv)(const ShortConvArgs&);
    void (*take_rows)(const TakeRowsArgs&);
};

// Fastest target first; those that this machine can't run are skipped.
const Table& table();
// Chooses a target by name, for tests; false where this machine can't run it.
bool choose_target(const char* target);

}  // namespace milepost
