// All kernels of one target, compiled as one unit with the target's flags.
#include "../table.h"

#include "../finite.inl"
#include "../gated_activation.inl"
#include "../grouped_experts.inl"
#include "../limits.inl"
#include "../linear.inl"
#include "../norm.inl"
#include "../route.inl"
#include "../rows.inl"

namespace milepost::MILEPOST_TARGET {

#define MILEPOST_STRING_OF(name) #name
#define MILEPOST_STRING(name) MILEPOST_STRING_OF(name)

extern const Table table;
const Table table = {
    .target = MILEPOST_STRING(MILEPOST_TARGET),
    .gated_activation = gated_activation,
    .grouped_experts = grouped_experts,
    .linear = linear,
    .embedding = embedding,
    .take_rows = take_rows,
    .add = add,
    .rms_norm = rms_norm,
    .attn_res = attn_res,
    .finite_rows = finite_rows,
    .greedy = greedy,
    .route = route,
    .read_all = read_all,
    .multiply_add = multiply_add,
};

}  // namespace milepost::MILEPOST_TARGET
