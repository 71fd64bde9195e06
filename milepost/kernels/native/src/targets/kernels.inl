// All kernels of one target, compiled as one unit with the target's flags.
#include "../table.h"

#include "../finite.inl"
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
    .add = add,
    .attn_res = attn_res,
    .embedding = embedding,
    .finite_rows = finite_rows,
    .finite_states = finite_states,
    .gated_activation = gated_activation,
    .gated_head_norm = gated_head_norm,
    .grouped_experts = grouped_experts,
    .kda = kda,
    .kda_gate = kda_gate,
    .linear = linear,
    .mla_attention = mla_attention,
    .mla_write = mla_write,
    .multiply_registers = multiply_registers,
    .read_all = read_all,
    .rms_norm = rms_norm,
    .route = route,
    .short_conv = short_conv,
    .take_rows = take_rows,
};

}  // namespace milepost::MILEPOST_TARGET
