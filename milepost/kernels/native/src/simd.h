// Vectors of floats, as wide as the target's registers, by the compiler's vector extensions.
//
// Everything here lives in the namespace of the target that is being compiled (`MILEPOST_TARGET`) and is inline there:
// code for AVX-512 must never be picked by the linker for a machine without it, so kernels use no templates of the
// standard library that hold arithmetic.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "counts.h"
#include "floats.h"

namespace milepost::MILEPOST_TARGET {

#if defined(__AVX512F__)
constexpr int kWidth = 16;
#elif defined(__AVX2__)
constexpr int kWidth = 8;
#else
constexpr int kWidth = 4;
#endif

typedef float VecF __attribute__((vector_size(kWidth * 4)));
typedef int32_t VecI __attribute__((vector_size(kWidth * 4)));
typedef uint32_t VecU __attribute__((vector_size(kWidth * 4)));
typedef uint16_t VecU16 __attribute__((vector_size(kWidth * 2)));
typedef int8_t VecI8 __attribute__((vector_size(kWidth)));
typedef uint8_t VecU8 __attribute__((vector_size(kWidth)));

// By x - 0, which is x for every x; the compiler sees the broadcast in it, as it doesn't in 0 + x.
static inline VecF splat(float x) { return x - VecF{}; }

static inline VecF load(const float* p) {
    VecF v;
    std::memcpy(&v, p, sizeof v);
    return v;
}

static inline void store(float* p, VecF v) { std::memcpy(p, &v, sizeof v); }

// a b + c, rounded once where the target can: named, so that no two ways to the same sum differ in what was fused.
static inline VecF multiply_add(VecF a, VecF b, VecF c) {
#if defined(__AVX512F__)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__) && defined(__FMA__)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

static inline VecU bits(VecF v) { return reinterpret_cast<VecU>(v); }
static inline VecF floats(VecU v) { return reinterpret_cast<VecF>(v); }

// Narrow numbers widened to 32 bits. The compiler's own conversion of vectors takes a detour on x86; and it warns of its
// own forms without a mask.
#if defined(__AVX512F__)
constexpr __mmask16 kAll = 0xFFFF;
#endif

static inline VecU widened(const uint8_t* p) {
#if defined(__AVX512F__)
    return reinterpret_cast<VecU>(_mm512_maskz_cvtepu8_epi32(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
    return reinterpret_cast<VecU>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
    VecU8 v;
    std::memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, VecU);
#endif
}

static inline VecU widened(const uint16_t* p) {
#if defined(__AVX512F__)
    return reinterpret_cast<VecU>(_mm512_maskz_cvtepu16_epi32(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif defined(__AVX2__)
    return reinterpret_cast<VecU>(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
    VecU16 v;
    std::memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, VecU);
#endif
}

static inline VecI widened(const int8_t* p) {
#if defined(__AVX512F__)
    return reinterpret_cast<VecI>(_mm512_maskz_cvtepi8_epi32(kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif defined(__AVX2__)
    return reinterpret_cast<VecI>(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
    VecI8 v;
    std::memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, VecI);
#endif
}

// bfloat16 is the upper half of a float32.
static inline VecF load(const uint16_t* p) { return floats(widened(p) << 16); }

// Rounds to the nearest even bfloat16; a NaN stays one.
static inline VecU16 to_bf16(VecF v) {
    const VecU b = bits(v);
    const VecU rounded = (b + 0x7FFF + ((b >> 16) & 1)) >> 16;
    const VecU quiet = (b >> 16) | 0x40;
    const VecI nan = v != v;
    return __builtin_convertvector((rounded & ~reinterpret_cast<VecU>(nan)) | (quiet & reinterpret_cast<VecU>(nan)), VecU16);
}

static inline void store(uint16_t* p, VecF v) {
    const VecU16 half = to_bf16(v);
    std::memcpy(p, &half, sizeof half);
}

static inline VecF load(const int8_t* p) { return __builtin_convertvector(widened(p), VecF); }

static inline VecF select(VecI mask, VecF yes, VecF no) { return mask ? yes : no; }

// A NaN in `a` stays, as in the comparison `a < b ? b : a`.
static inline VecF larger(VecF a, VecF b) { return select(a < b, b, a); }
static inline VecF smaller(VecF a, VecF b) { return select(a > b, b, a); }

// The sum of all lanes, halves first: the order is fixed for a width.
static inline float sum(VecF v) {
    float lanes[kWidth];
    store(lanes, v);
    for (int half = kWidth / 2; half > 0; half /= 2) {
        for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    return lanes[0];
}

static inline float largest(VecF v) {
    float lanes[kWidth];
    store(lanes, v);
    for (int i = 1; i < kWidth; ++i) lanes[0] = lanes[0] < lanes[i] ? lanes[i] : lanes[0];
    return lanes[0];
}

static inline VecF abs(VecF v) { return floats(bits(v) & 0x7FFFFFFFu); }

// e^x to about 1 unit in the last place for normal results; 0 below -104, infinity above 88.8, NaN for NaN.
// Cody and Waite's reduction to |r| <= ln 2 / 2, then the Taylor polynomial to r^7.
static inline VecF exp(VecF x) {
    const VecF clamped = smaller(larger(x, splat(-104.0f)), splat(89.0f));
    const VecF shifter = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    const VecF n = (clamped * 1.44269504088896341f + shifter) - shifter;
    VecF r = clamped - n * 0.693145751953125f;
    r = r - n * 1.42860682030941723212e-6f;
    VecF p = splat(1.0f / 5040);
    p = p * r + 1.0f / 720;
    p = p * r + 1.0f / 120;
    p = p * r + 1.0f / 24;
    p = p * r + 1.0f / 6;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    // Two factors of 2^(n/2), so that results near the ends of the range neither overflow early nor vanish.
    const VecI whole = __builtin_convertvector(select(n == n, n, VecF{}), VecI);
    const VecI half = whole >> 1;
    const VecF a = reinterpret_cast<VecF>((half + 127) << 23);
    const VecF b = reinterpret_cast<VecF>((whole - half + 127) << 23);
    return select(x == x, p * a * b, x);
}

static inline VecF sigmoid(VecF x) { return 1.0f / (1.0f + exp(-x)); }

static inline VecF silu(VecF x) { return x / (1.0f + exp(-x)); }

// By 1 - 2 / (e^2x + 1), and by a polynomial near zero, where that would cancel.
static inline VecF tanh(VecF x) {
    const VecF far = 1.0f - 2.0f / (exp(2.0f * x) + 1.0f);
    const VecF s = x * x;
    VecF p = splat(62.0f / 2835) + s * (-1382.0f / 155925);  // the Taylor series of tanh
    p = splat(-17.0f / 315) + s * p;
    p = splat(2.0f / 15) + s * p;
    p = splat(-1.0f / 3) + s * p;
    const VecF near = x + x * s * p;
    return select(abs(x) < 0.3f, near, far);
}

}  // namespace milepost::MILEPOST_TARGET
