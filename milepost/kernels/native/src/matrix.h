// Weight matrices as kernels read them: packed in panels of 32 outputs, inputs in order within.
//
//     f32, bf16   [batch, panels, in, 32]
//     int8        [batch, panels, in, 32] signed, one float scale an output [batch, panels, 32]
//     mxfp4       [batch, panels, in / 32] groups of 544 bytes: 32 scale bytes, one an output, then for each four of
//                 32 inputs 16 words of 32 bits: word j holds output j's four codes from its lowest bits up, and
//                 above them output j + 16's
//
// A panel is read from front to back whatever the number of tokens, and every output is summed in the order of its
// inputs in one register lane: a token's result doesn't depend on which tokens are computed beside it. Outputs beyond
// the last are zeros.
#pragma once

#include <cstdint>

#include "counts.h"

namespace milepost {

constexpr int64_t kPanel = 32;
constexpr int64_t kGroup = 32;
constexpr int64_t kGroupBytes = kPanel + kGroup * kPanel / 2;

enum class Format : int { f32 = 0, bf16 = 1, int8 = 2, mxfp4 = 3 };

struct Matrix {
    Format format;
    int64_t batch;  // matrices of one shape: experts, or heads
    int64_t outputs;
    int64_t inputs;
    const void* data;
    const float* scales;  // int8 only

    kept_inline int64_t panels() const { return pieces(outputs, kPanel); }

    kept_inline int64_t panel_bytes() const {
        switch (format) {
            case Format::f32: return inputs * kPanel * 4;
            case Format::bf16: return inputs * kPanel * 2;
            case Format::int8: return inputs * kPanel;
            case Format::mxfp4: return inputs / kGroup * kGroupBytes;
        }
        return 0;
    }

    kept_inline const uint8_t* panel(int64_t item, int64_t index) const {
        return static_cast<const uint8_t*>(data) + (item * panels() + index) * panel_bytes();
    }
};

}  // namespace milepost
