// All kernels of one target, compiled as one unit with the target's flags.
#include "../table.h"

#include "../limits.inl"
#include "../linear.inl"

namespace milepost::MILEPOST_TARGET {

#define MILEPOST_STRING_OF(name) #name
#define MILEPOST_STRING(name) MILEPOST_STRING_OF(name)

extern const Table table;
const Table table = {
    .target = MILEPOST_STRING(MILEPOST_TARGET),
    .linear = linear,
    .read_all = read_all,
    .multiply_add = multiply_add,
};

}  // namespace milepost::MILEPOST_TARGET
