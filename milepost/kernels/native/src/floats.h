// Single floats and bfloat16s, which are the upper halves of floats.
#pragma once

#include <cstdint>
#include <cstring>

namespace milepost {

static inline float widen(float x) { return x; }

static inline float widen(uint16_t x) {
    const uint32_t bits = uint32_t{x} << 16;
    float f;
    std::memcpy(&f, &bits, sizeof f);
    return f;
}

static inline void narrow(float x, float* out) { *out = x; }

// Rounds to the nearest even bfloat16; a NaN stays one.
static inline void narrow(float x, uint16_t* out) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    *out = static_cast<uint16_t>(x != x ? (bits >> 16) | 0x40 : (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

}  // namespace milepost
