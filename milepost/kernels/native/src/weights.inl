// Stored weights as vectors of floats: one reader a format.
//
// A reader stands at a panel (or at several that follow one another, or at a strip of one). `get(k, j, w)` gives the
// weights of input k + j, kWidth outputs a vector; k is a multiple of kStep and j below it. Sums over runs of kRun inputs
// are multiplied by `scale(k, v)`, k being the run's first input, where a format is kScaled. `fetch_ahead(k)` asks the
// memory for what will be wanted a while after k.
#pragma once

#include "matrix.h"
#include "simd.h"

namespace milepost::MILEPOST_TARGET {

constexpr int kPanelVectors = kPanel / kWidth;
constexpr int64_t kAhead = 2048;  // bytes; half and twice as many measured worse

// f32, bf16 and int8: [in, 32] numbers a panel. The scales of int8 are for finished sums.
template <class Number>
struct PlainWeights {
    static constexpr int64_t kMostTilesStored = INT64_MAX;  // more tiles read them unpacked
    static constexpr bool kScaled = false;
    static constexpr int64_t kRun = INT64_MAX;
    static constexpr int kStep = 1;

    const Number* at;
    int64_t inputs;  // of a panel

    // `strip` is the first output wanted, `from` the first input.
    PlainWeights(const uint8_t* panel, int64_t panel_inputs, int64_t from, int64_t strip)
        : at(reinterpret_cast<const Number*>(panel) + from * kPanel + strip), inputs(panel_inputs) {}

    // Bytes of a panel's first inputs.
    static int64_t bytes(int64_t inputs) { return inputs * kPanel * int64_t{sizeof(Number)}; }

    VecF scale(int64_t, int) const { return splat(1.0f); }

    template <int Vectors>
    void get(int64_t k, int, VecF (&w)[Vectors]) const {
        for (int v = 0; v < Vectors; ++v) {
            const int64_t panel = v / kPanelVectors, lane = v % kPanelVectors * kWidth;
            w[v] = load(at + (panel * inputs + k) * kPanel + lane);
        }
    }

    template <int Panels>
    void fetch_ahead(int64_t k) const {
        // Behind a panel's last input come those that are read after these `Panels`, not the one that is read beside it.
        const int64_t skipped = bytes(k) + kAhead < bytes(inputs) ? 0 : (Panels - 1) * bytes(inputs);
        for (int64_t p = 0; p < Panels; ++p) {
            const char* line = reinterpret_cast<const char*>(at + (p * inputs + k) * kPanel) + kAhead + skipped;
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
    static constexpr int64_t kMostTilesStored = 1;
    static constexpr bool kScaled = true;
    static constexpr int64_t kRun = kGroup;
    static constexpr int kStep = 4;  // inputs in a word

    const uint8_t* at;
    int64_t panel_bytes;

    int64_t strip;

    Mxfp4Weights(const uint8_t* panel, int64_t inputs, int64_t from, int64_t first_output)
        : at(panel + bytes(from)), panel_bytes(bytes(inputs)), strip(first_output) {}

    static int64_t bytes(int64_t inputs) { return inputs / kGroup * kGroupBytes; }

    VecF scale(int64_t k, int v) const {
        return scale_values(at + bytes(k) + v / kPanelVectors * panel_bytes + v % kPanelVectors * kWidth + strip);
    }

    // Of whole panels only.
    template <int Vectors>
    void get(int64_t k, int j, VecF (&w)[Vectors]) const {
        constexpr int kHalf = kPanelVectors / 2;
        for (int p = 0; p < Vectors / kPanelVectors; ++p) {
            for (int v = 0; v < kHalf; ++v) {
                const int low = p * kPanelVectors + v, high = low + kHalf;
                code_values(words(k, p) + v * kWidth * 4, j, w[low], w[high]);
            }
        }
    }

    template <int Panels>
    void fetch_ahead(int64_t k) const {
        for (int p = 0; p < Panels; ++p) __builtin_prefetch(words(k, p) + kAhead);
    }

private:
    const uint8_t* words(int64_t k, int panel) const {
        return at + panel * panel_bytes + k / kGroup * kGroupBytes + kPanel + (k & (kGroup - 1)) * (kPanel / 2);
    }
};

// A block of one panel's weights that were brought to scratch as floats [inputs, 32], scales left aside.
template <class Stored>
struct UnpackedWeights {
    static constexpr bool kScaled = Stored::kScaled;
    static constexpr int64_t kRun = Stored::kRun;
    static constexpr int kStep = 1;

    const float* at;
    Stored stored;

    UnpackedWeights(const float* unpacked, const Stored& stored_weights, int64_t strip)
        : at(unpacked + strip), stored(stored_weights) {}

    VecF scale(int64_t k, int v) const { return stored.scale(k, v); }

    template <int Vectors>
    void get(int64_t k, int, VecF (&w)[Vectors]) const {
        for (int v = 0; v < Vectors; ++v) w[v] = load(at + k * kPanel + v * kWidth);
    }
};

}  // namespace milepost::MILEPOST_TARGET
