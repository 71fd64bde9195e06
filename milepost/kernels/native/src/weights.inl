// Stored weights as vectors of floats: one reader a format.
//
// A reader stands at a panel (or at several that follow one another, or at a strip of one). `open(k)` prepares it for
// kRun inputs from k on, and `get(k, j, w)` gives the weights of input k + j, kWidth outputs a vector; k is a multiple of
// kStep and j below it. `fetch_ahead(k, w)` asks the memory for what get(k) will want a while later.
#pragma once

#include "matrix.h"
#include "simd.h"

namespace milepost::MILEPOST_TARGET {

constexpr int kPanelVectors = kPanel / kWidth;
constexpr int64_t kAhead = 1024;  // bytes

// f32, bf16 and int8: [in, 32] numbers a panel. The scales of int8 are for finished sums.
template <class Number>
struct PlainWeights {
    static constexpr int64_t kRun = INT64_MAX;
    static constexpr int kStep = 1;

    const Number* at;
    int64_t inputs;  // of a panel

    // `strip` is the first output wanted, `from` the first input.
    PlainWeights(const uint8_t* panel, int64_t panel_inputs, int64_t from, int64_t strip)
        : at(reinterpret_cast<const Number*>(panel) + from * kPanel + strip), inputs(panel_inputs) {}

    template <int Vectors>
    void open(int64_t) {}

    template <int Vectors>
    void get(int64_t k, int, VecF (&w)[Vectors]) const {
        for (int v = 0; v < Vectors; ++v) {
            const int64_t panel = v / kPanelVectors, lane = v % kPanelVectors * kWidth;
            w[v] = load(at + (panel * inputs + k) * kPanel + lane);
        }
    }

    template <int Panels>
    void fetch_ahead(int64_t k) const {
        for (int64_t p = 0; p < Panels; ++p) {
            const char* line = reinterpret_cast<const char*>(at + (p * inputs + k) * kPanel) + kAhead;
            for (int64_t byte = 0; byte < int64_t{sizeof(Number)} * kPanel; byte += 64) __builtin_prefetch(line + byte);
        }
    }
};

#if defined(__AVX512BW__)

// The values of the j-th codes in the words at p, of their lower and their upper halves. 32 codes go through one
// permutation of bfloat16 values, the upper halves of floats; its index has five bits, of which a code has four.
static inline void code_values(const uint8_t* p, int j, VecF& low, VecF& high) {
    const __m512i half = _mm512_setr_epi32(0x3F000000, 0x3FC03F80, 0x40404000, 0x40C04080, 0xBF008000, 0xBFC0BF80,
                                           0xC040C000, 0xC0C0C080, 0x3F000000, 0x3FC03F80, 0x40404000, 0x40C04080,
                                           0xBF008000, 0xBFC0BF80, 0xC040C000, 0xC0C0C080);
    const __m512i codes = _mm512_loadu_si512(p);
    const auto values = reinterpret_cast<VecU>(_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4 * j), half));
    low = floats(values << 16);
    high = floats(values & 0xFFFF0000u);
}

#else

// The value of the E2M1 code in each lane's lowest four bits; higher bits are ignored.
static inline VecF code_values(VecU codes) {
#if defined(__AVX2__)
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

// The values of the j-th codes in the words at p, of their lower and their upper halves.
static inline void code_values(const uint8_t* p, int j, VecF& low, VecF& high) {
    VecU codes;
    std::memcpy(&codes, p, sizeof codes);
    low = code_values(codes >> (4 * j));
    high = code_values(codes >> (4 * j + 16));
}

#endif

// What the scale bytes at p multiply by: 2^(byte - 127), NaN for 255.
static inline VecF scale_values(const uint8_t* p) {
    const VecU b = widened(p);
    const VecU least = reinterpret_cast<VecU>(b == 0), nan = reinterpret_cast<VecU>(b == 255);
    return floats((b << 23) | (least & 0x00400000u) | (nan & 0x7FC00000u));
}

struct Mxfp4Weights {
    static constexpr int64_t kRun = kGroup;
    static constexpr int kStep = 4;  // inputs in a word
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
    void get(int64_t k, int j, VecF (&w)[Vectors]) const {
        constexpr int kHalf = kPanelVectors / 2;
        for (int p = 0; p < Vectors / kPanelVectors; ++p) {
            const uint8_t* words = group + p * panel_bytes + kPanel + (k & (kGroup - 1)) * (kPanel / 2);
            for (int v = 0; v < kHalf; ++v) {
                const int low = p * kPanelVectors + v, high = low + kHalf;
                code_values(words + v * kWidth * 4, j, w[low], w[high]);
                w[low] *= scales[low];
                w[high] *= scales[high];
            }
        }
    }

    template <int Panels>
    void fetch_ahead(int64_t k) const {
        for (int p = 0; p < Panels; ++p) {
            __builtin_prefetch(group + p * panel_bytes + (k & (kGroup - 1)) * (kPanel / 2) + kAhead);
        }
    }
};

}  // namespace milepost::MILEPOST_TARGET
