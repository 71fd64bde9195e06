// Arithmetic with sizes. Static, here and in `floats.h`, and members of shared structs always inline (`kept_inline`): what
// the linker keeps one copy of for all targets might be the one that only the fastest machines run.
#pragma once

#include <cstdint>

#define kept_inline __attribute__((always_inline)) inline

namespace milepost {

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// How many pieces of a size cover n.
static inline int64_t pieces(int64_t n, int64_t size) { return (n + size - 1) / size; }

static inline int64_t rounded_up(int64_t n, int64_t unit) { return pieces(n, unit) * unit; }

}  // namespace milepost
