// Stored weights as vectors of floats: one reader a format.
//
// A reader stands at a panel (or at several that follow one another, or at a strip of one). `open(k)` prepares it for
// kRun inputs from k on, a multiple of kRun, and `get(k, w)` gives the weights of input k, kWidth outputs a vector.
#pragma once

#include "matrix.h"
#include "simd.h"

namespace milepost::MILEPOST_TARGET {

constexpr int kPanelVectors = kPanel / kWidth;

// f32, bf16 and int8: [in, 32] numbers a panel. The scales of int8 are for finished sums.
template <class Number>
struct PlainWeights {
    static constexpr int64_t kRun = INT64_MAX;

    const Number* at;
    int64_t inputs;  // of a panel

    // `strip` is the first output wanted, `from` the first input.
    PlainWeights(const uint8_t* panel, int64_t panel_inputs, int64_t from, int64_t strip)
        : at(reinterpret_cast<const Number*>(panel) + from * kPanel + strip), inputs(panel_inputs) {}

    template <int Vectors>
    void open(int64_t) {}

    template <int Vectors>
    void get(int64_t k, VecF (&w)[Vectors]) const {
        for (int v = 0; v < Vectors; ++v) {
            const int64_t panel = v / kPanelVectors, lane = v % kPanelVectors * kWidth;
            w[v] = load(at + (panel * inputs + k) * kPanel + lane);
        }
    }
};

// The value of the E2M1 code in each lane's lowest four bits; higher bits are ignored.
static inline VecF code_values(VecU codes) {
#if defined(__AVX512F__)
    const VecF values = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.f, -.5, -1, -1.5, -2, -3, -4, -6};
    return __builtin_shuffle(values, reinterpret_cast<VecI>(codes));
#elif defined(__AVX2__)
    const __m256 magnitudes = _mm256_setr_ps(0, .5, 1, 1.5, 2, 3, 4, 6);
    const VecF magnitude = _mm256_permutevar8x32_ps(magnitudes, reinterpret_cast<__m256i>(codes));
    return floats(bits(magnitude) | (codes << 28 & 0x80000000u));
#else
    // Exponent and fraction move into place, but for 0 and 0.5, which E2M1 holds as subnormals.
    const VecU magnitude = codes & 7;
    const VecU subnormal = reinterpret_cast<VecU>(magnitude < 2);
    const VecU half = (0 - magnitude) & 0x3F000000u;
    const VecU normal = (magnitude << 22) + (126u << 23);
    return floats((subnormal & half) | (~subnormal & normal) | (codes << 28 & 0x80000000u));
#endif
}

// What the scale bytes at p multiply by: 2^(byte - 127), NaN for 255.
static inline VecF scale_values(const uint8_t* p) {
    const VecU b = widened(p);
    const VecU least = reinterpret_cast<VecU>(b == 0), nan = reinterpret_cast<VecU>(b == 255);
    return floats((b << 23) | (least & 0x00400000u) | (nan & 0x7FC00000u));
}

struct Mxfp4Weights {
    static constexpr int64_t kRun = kGroup;
    static constexpr int kMostPanels = 4;

    const uint8_t* panel;
    int64_t panel_bytes;
    const uint8_t* group = nullptr;
    VecF scales[kMostPanels * kPanelVectors] = {};

    Mxfp4Weights(const uint8_t* first, int64_t inputs, int64_t from, int64_t)
        : panel(first + from / kGroup * kGroupBytes), panel_bytes(inputs / kGroup * kGroupBytes) {}

    template <int Vectors>
    void open(int64_t k) {
        group = panel + k / kGroup * kGroupBytes;
        for (int v = 0; v < Vectors; ++v) {
            scales[v] = scale_values(group + v / kPanelVectors * panel_bytes + v % kPanelVectors * kWidth);
        }
    }

    template <int Vectors>
    void get(int64_t k, VecF (&w)[Vectors]) const {
        constexpr int kHalf = kPanelVectors / 2;
        const uint8_t* codes = group + kPanel + k % kGroup * kPanel / 2;
        for (int p = 0; p < Vectors / kPanelVectors; ++p) {
            for (int v = 0; v < kHalf; ++v) {
                const VecU pair = widened(codes + p * panel_bytes + v * kWidth);
                const int low = p * kPanelVectors + v, high = low + kHalf;
                w[low] = code_values(pair) * scales[low];
                w[high] = code_values(pair >> 4) * scales[high];
            }
        }
    }
};

}  // namespace milepost::MILEPOST_TARGET
