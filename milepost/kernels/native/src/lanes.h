// What moves numbers between the lanes of vectors: sums across them, transposed blocks, vectors that are not full.
#pragma once

#include <utility>

#include "simd.h"

namespace milepost::MILEPOST_TARGET {

using Lanes = std::make_integer_sequence<int, kWidth>;

// With the lanes of a and b in groups: the first half of each group (Offset 0) or the second (Offset Group / 2).
template <int Group, int Offset, int... I>
static inline VecF halves(VecF a, VecF b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, (I / (Group / 2) * Group + I % (Group / 2) + Offset)...);
}

// Adds the second half of each group of lanes to the first, and packs the results of a and b into one vector.
template <int Group>
static inline VecF fold(VecF a, VecF b) {
    return halves<Group, 0>(a, b, Lanes{}) + halves<Group, Group / 2>(a, b, Lanes{});
}

// v[0] becomes the sums of v[0 .. Group - 1], one a lane; each is summed in the order of `sum_lanes`.
template <int Group = kWidth>
static inline void fold_all(VecF* v) {
    for (int i = 0; i < Group / 2; ++i) v[i] = fold<Group>(v[2 * i], v[2 * i + 1]);
    if constexpr (Group > 2) fold_all<Group / 2>(v);
}

// The same for fewer vectors, a power of two: their sums are in v[0]'s first lanes.
template <int Count, int Group = kWidth>
static inline void fold_some(VecF* v) {
    if constexpr (Count > 1) {
        for (int i = 0; i < Count / 2; ++i) v[i] = fold<Group>(v[2 * i], v[2 * i + 1]);
    } else {
        v[0] = fold<Group>(v[0], v[0]);
    }
    if constexpr (Group > 2) fold_some<(Count > 1 ? Count / 2 : 1), Group / 2>(v);
}

// The sum of all lanes in every lane, halves first.
template <int Group = kWidth>
static inline VecF sum_lanes(VecF v) {
    v = fold<Group>(v, v);
    if constexpr (Group > 2) return sum_lanes<Group / 2>(v);
    return v;
}

// Exchanges the off-diagonal blocks of Step lanes: one level of a transposition.
template <int Step, int... I>
static inline void exchange(VecF& a, VecF& b, std::integer_sequence<int, I...>) {
    const VecF first = __builtin_shufflevector(a, b, (I & Step ? kWidth + I - Step : I)...);
    const VecF second = __builtin_shufflevector(a, b, (I & Step ? kWidth + I : I + Step)...);
    a = first;
    b = second;
}

// Lane j of v[i] becomes lane i of v[j].
template <int Step = 1>
static inline void transpose(VecF* v) {
    for (int i = 0; i < kWidth; ++i) {
        if ((i & Step) == 0) exchange<Step>(v[i], v[i + Step], Lanes{});
    }
    if constexpr (2 * Step < kWidth) transpose<2 * Step>(v);
}

// The first `count` lanes from memory, zeros behind them.
template <class T>
static inline VecF load_first(const T* p, int64_t count) {
    if (count >= kWidth) return load(p);
    T lanes[kWidth] = {};
    std::memcpy(lanes, p, static_cast<size_t>(count) * sizeof(T));
    return load(lanes);
}

// The first `count` lanes to memory.
template <class T>
static inline void store_first(T* p, VecF v, int64_t count) {
    if (count >= kWidth) return store(p, v);
    T lanes[kWidth];
    store(lanes, v);
    std::memcpy(p, lanes, static_cast<size_t>(count) * sizeof(T));
}

static inline VecF square_root(VecF v) {
    for (int i = 0; i < kWidth; ++i) v[i] = __builtin_sqrtf(v[i]);
    return v;
}

// For loops over rows of either kind: Whole ones are known to end with a vector.
template <bool Whole, class T>
static inline VecF load_part(const T* p, int64_t count) {
    return Whole ? load(p) : load_first(p, count);
}

template <bool Whole, class T>
static inline void store_part(T* p, VecF v, int64_t count) {
    Whole ? store(p, v) : store_first(p, v, count);
}

}  // namespace milepost::MILEPOST_TARGET
