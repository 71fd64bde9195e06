// All kernels of one target, compiled as one unit with the target's flags.
#include "../table.h"

#include "../finite.inl"
#include "../finite_states.inl"
#include "../gated_activation.inl"
#include "../gated_head_norm.inl"
#include "../grouped_experts.inl"
#include "../kda.inl"
#include "../kda_gate.inl"
#include "../limits.inl"
#include "../linear.inl"
#include "../mla_attention.inl"
#include "../mla_write.inl"
#include "../norm.inl"
#include "../route.inl"
#include "../rows.inl"
#include "../short_conv.inl"

namespace milepost::MILEPOST_TARGET {

#define MILEPOST_STRING_OF(name) #name
#define MILEPOST_STRING(name) MILEPOST_STRING_OF(name)

extern const Table table;
const Table table = {
    .target = MILEPOST_STRING(MILEPOST_TARGET),
    .gated_activation = gated_activation,
    .grouped_experts = grouped_experts,
    .linear = linear,
    .mla_write = mla_write,
    .mla_attention = mla_attention,
    .embedding = embedding,
    .take_rows = take_rows,
    .add = add,
    .rms_norm = rms_norm,
    .attn_res = attn_res,
    .finite_rows = finite_rows,
    .route = route,
    .short_conv = short_conv,
    .kda_gate = kda_gate,
    .kda = kda,
    .gated_head_norm = gated_head_norm,
    .finite_states = finite_states,
    .read_all = read_all,
    .multiply_add = multiply_add,
};

}  // namespace milepost::MILEPOST_TARGET
