// All kernels of one target, compiled as one unit with the target's flags.
#include "../table.h"

#include "../finite.inl"
#include "../limits.inl"
#include "../linear.inl"
#include "../mla_attention.inl"
#include "../mla_write.inl"
#include "../norm.inl"
#include "../rows.inl"

namespace milepost::MILEPOST_TARGET {

#define MILEPOST_STRING_OF(name) #name
#define MILEPOST_STRING(name) MILEPOST_STRING_OF(name)

extern const Table table;
const Table table = {
    .target = MILEPOST_STRING(MILEPOST_TARGET),
    .linear = linear,
    .mla_write = mla_write,
    .mla_attention = mla_attention,
    .embedding = embedding,
    .take_rows = take_rows,
    .add = add,
    .rms_norm = rms_norm,
    .attn_res = attn_res,
    .finite_rows = finite_rows,
    .greedy = greedy,
    .read_all = read_all,
    .multiply_add = multiply_add,
};

}  // namespace milepost::MILEPOST_TARGET
