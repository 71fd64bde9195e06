// All kernels of one target, compiled as one unit with the target's flags.
#include "../table.h"

#include "../linear.inl"
#include "../mla_attention.inl"
#include "../mla_write.inl"

namespace milepost::MILEPOST_TARGET {

#define MILEPOST_STRING_OF(name) #name
#define MILEPOST_STRING(name) MILEPOST_STRING_OF(name)

extern const Table table;
const Table table = {
    .target = MILEPOST_STRING(MILEPOST_TARGET),
    .linear = linear,
    .mla_write = mla_write,
    .mla_attention = mla_attention,
};

}  // namespace milepost::MILEPOST_TARGET
