// Some (token, head) pairs of a row over a part of its context, with rows as they are cached.
//
// Vectors lie along the cached rows, so that one head keeps them as full as many. A block of pairs meets as many keys at
// a time as make kWidth sums together: each vector that is loaded serves the whole block, and the sums' lanes fold into
// one vector of scores, [pairs of the block][keys]. Scores and softmax stay in this form; sums of values are kept in
// registers over a tile of keys.
//
// A row's blocks are all of one kind, so a pair's result depends on the row's own sizes and the keys' positions alone.
#pragma once

#include "lanes.h"
#include "mla_tiles.inl"

namespace milepost::MILEPOST_TARGET::mla {

constexpr int64_t kPartKeys = 32;  // cached rows taken at a time: they stay in the first cache

#if defined(__AVX512F__)
constexpr int kMostPairs = 8;   // of a block
constexpr int kMixSums = 24;    // vectors kept in registers
#else
constexpr int kMostPairs = 4;
constexpr int kMixSums = 12;
#endif
constexpr int kLeastPairs = 4;

// Whether a row of so many pairs has them in blocks of kLeastPairs: where larger ones would be half empty.
static inline bool in_small_blocks(int64_t pairs) {
    return pairs < 2 * kMostPairs && rounded_up(pairs, kLeastPairs) < rounded_up(pairs, kMostPairs);
}

struct Query {
    const float* latent;  // [lora]
    const float* rope;
    int64_t position;
};

// Lanes come in groups of Size; each gets the largest of its group. No lane may hold a NaN.
template <int Size, int Step = 1, int... I>
static inline VecF largest_of_groups(VecF v, std::integer_sequence<int, I...> lanes) {
    if constexpr (Step < Size) {
        v = larger(v, __builtin_shufflevector(v, v, (I ^ Step)...));
        return largest_of_groups<Size, 2 * Step>(v, lanes);
    }
    return v;
}

// Scores of Pairs queries [depth / kWidth, Pairs, kWidth] with kWidth / Pairs keys, [Pairs][keys].
template <int Pairs, class Number>
static inline VecF block_scores(const float* queries, const Number* const* keys, int64_t depth) {
    constexpr int kCount = kWidth / Pairs;
    VecF sums[kWidth] = {};
    for (int64_t d = 0; d < depth; d += kWidth, queries += Pairs * kWidth) {
        VecF key[kCount];
        for (int k = 0; k < kCount; ++k) key[k] = load(keys[k] + d);
        for (int p = 0; p < Pairs; ++p) {
            const VecF query = load(queries + p * kWidth);
            for (int k = 0; k < kCount; ++k) sums[p * kCount + k] = multiply_add(query, key[k], sums[p * kCount + k]);
        }
    }
    fold_all(sums);
    return sums[0];
}

// Pairs of a row that are taken together.
template <int Pairs>
struct Block {
    static constexpr int kCount = kWidth / Pairs;  // keys whose scores share a vector
    static constexpr int kVectors = kMixSums / Pairs;

    const Query* queries;
    int64_t pairs;
    int64_t depth;  // of a row, up to whole vectors
    float* turned;  // queries, scaled: [depth / kWidth, Pairs, kWidth]
    float* sums = nullptr;  // [Pairs, stride]
    int64_t stride = 0;
    VecF top = {}, total = {};  // the running numbers of the softmax, [Pairs][kCount]; a lane counts its own keys

    void turn(const Dims& dims) {
        const float scale = dims.scale();
        for (int64_t i = 0; i < depth * Pairs; i += kWidth) store(turned + i, VecF{});
        for (int64_t p = 0; p < pairs; ++p) {
            put(p, 0, queries[p].latent, dims.lora, scale);
            put(p, dims.lora, queries[p].rope, dims.rope, scale);
        }
        top = splat(kHidden);
    }

    // Puts numbers at `first` of a query.
    void put(int64_t pair, int64_t first, const float* numbers, int64_t size, float scale) const {
        const auto place = [&](int64_t d) { return turned + (d / kWidth * Pairs + pair) * kWidth + d % kWidth; };
        int64_t i = 0;
        if (first % kWidth == 0) {
            for (; i + kWidth <= size; i += kWidth) store(place(first + i), load(numbers + i) * scale);
        }
        for (; i < size; ++i) *place(first + i) = numbers[i] * scale;
    }

    // between() is called after each group of keys, where the caller may let memory be fetched.
    template <class Number, class Between>
    void attend(const Number* const* rows, int64_t key, int64_t count, int64_t columns, bool first, float* weights,
                Between&& between) {
        const int64_t groups = (count + kCount - 1) / kCount;
        for (int64_t g = 0; g < groups; ++g) {
            store(weights + g * kWidth, block_scores<Pairs>(turned, rows + g * kCount, depth));
            between();
        }
        if (key + count - 1 > queries[0].position || groups * kCount > count) hide_later(key, count, groups, weights);
        const VecF shrink = weigh(groups, weights);
        mix(rows, groups, columns, first, shrink, weights);
    }

    // Scores of keys that a pair may not see, and of those behind the last of the tile, become kHidden.
    void hide_later(int64_t key, int64_t count, int64_t groups, float* scores) const {
        VecI visible;  // keys before a lane's first hidden one, less the place of the lane's own in its group
        for (int i = 0; i < kWidth; ++i) {
            const int64_t position = queries[least(i / kCount, pairs - 1)].position;
            visible[i] = static_cast<int32_t>(least(count, position - key + 1) - i % kCount);
        }
        for (int64_t g = 0; g < groups; ++g) {
            const VecI hidden = visible <= static_cast<int32_t>(g * kCount);
            store(scores + g * kWidth, select(hidden, splat(kHidden), load(scores + g * kWidth)));
        }
    }

    // Turns scores into weights; returns what earlier sums are worth now.
    VecF weigh(int64_t groups, float* scores) {
        const VecF before = top;
        VecF now = before;
        for (int64_t g = 0; g < groups; ++g) now = larger(now, load(scores + g * kWidth));
        now = largest_of_groups<kCount>(now, Lanes{});
        const VecF shrink = exp2_of_negative(before - now);
        VecF sum = total * shrink;
        for (int64_t g = 0; g < groups; ++g) {
            const VecF weight = exp2_of_negative(load(scores + g * kWidth) - now);
            store(scores + g * kWidth, weight);
            sum += weight;
        }
        top = now;
        total = sum;
        return shrink;
    }

    template <class Number>
    void mix(const Number* const* rows, int64_t groups, int64_t columns, bool first, VecF shrink,
             const float* weights) const {
        const int64_t vectors = columns / kWidth, strips = (vectors + kVectors - 1) / kVectors;
        for (int64_t strip = 0, at = 0; strip < strips; ++strip) {
            const int64_t end = vectors * (strip + 1) / strips;
            mix_some<kVectors>(end - at, rows, at * kWidth, groups, first, shrink, weights);
            at = end;
        }
    }

    template <int Vectors, class Number>
    void mix_some(int64_t vectors, const Number* const* rows, int64_t offset, int64_t groups, bool first, VecF shrink,
                  const float* weights) const {
        if (vectors == Vectors) return mix_strip<Vectors>(rows, offset, groups, first, shrink, weights);
        if constexpr (Vectors > 1) mix_some<Vectors - 1>(vectors, rows, offset, groups, first, shrink, weights);
    }

    template <int Vectors, class Number>
    void mix_strip(const Number* const* rows, int64_t offset, int64_t groups, bool first, VecF shrink,
                   const float* weights) const {
        VecF mixed[Pairs][Vectors] = {};
        if (!first) {
            for (int p = 0; p < Pairs; ++p) {
                for (int v = 0; v < Vectors; ++v) {
                    mixed[p][v] = load(sums + p * stride + offset + v * kWidth) * shrink[p * kCount];
                }
            }
        }
        for (int64_t g = 0; g < groups; ++g, rows += kCount, weights += kWidth) {
            for (int k = 0; k < kCount; ++k) {
                VecF value[Vectors];
                for (int v = 0; v < Vectors; ++v) value[v] = load(rows[k] + offset + v * kWidth);
                for (int p = 0; p < Pairs; ++p) {
                    const VecF weight = splat(weights[p * kCount + k]);
                    for (int v = 0; v < Vectors; ++v) mixed[p][v] = multiply_add(value[v], weight, mixed[p][v]);
                }
            }
        }
        for (int p = 0; p < Pairs; ++p) {
            for (int v = 0; v < Vectors; ++v) store(sums + p * stride + offset + v * kWidth, mixed[p][v]);
        }
    }

    void finish(const Softmax& softmax, int64_t at) const {
        for (int64_t p = 0; p < pairs; ++p) {
            softmax.top[at + p] = top[p * kCount];
            float sum = 0;
            for (int k = 0; k < kCount; ++k) sum += total[p * kCount + k];
            softmax.total[at + p] = sum;
        }
    }
};

// Up to kQueryLanes pairs of a row over some of its cached rows, in blocks of Pairs.
template <int Pairs>
class Part {
public:
    Part(const Dims& dims, const CachedRows& cached, const Query* queries, int64_t pairs)
        : cached_(cached), blocks_(rounded_up(pairs, Pairs) / Pairs), columns_(rounded_up(dims.lora, kWidth)) {
        const int64_t depth = rounded_up(cached.kv.row_dim, kWidth), turned = Pairs * depth;
        Pieces memory{scratch(blocks_ * turned + kPartKeys * (Pairs + cached.stride()) + (blocks_ + 2) * kPadding)};
        weights_ = memory.take(kPartKeys * Pairs);
        copies_ = memory.take(kPartKeys * cached.stride());
        for (int64_t b = 0, at = 0; b < blocks_; ++b, at += Pairs) {
            block_[b] = Block<Pairs>{queries + at, least(Pairs, pairs - at), depth, memory.take(turned)};
            block_[b].turn(dims);
        }
    }

    // Positions begin .. end - 1; sums [pairs rounded up to Pairs, stride].
    void run(int64_t begin, int64_t end, float* sums, int64_t stride, const Softmax& softmax) {
        for (int64_t b = 0; b < blocks_; ++b) block_[b].sums = sums + b * Pairs * stride, block_[b].stride = stride;
        if (cached_.whole() && cached_.kv.type == Float::bf16) {
            walk<uint16_t>(begin, end);
        } else {
            walk<float>(begin, end);
        }
        for (int64_t b = 0; b < blocks_; ++b) block_[b].finish(softmax, b * Pairs);
    }

private:
    template <class Number>
    void walk(int64_t begin, int64_t end) {
        const int64_t row_bytes = cached_.kv.row_dim * bytes_of(cached_.kv.type);
        const char* places[2][kPartKeys];
        cached_.find(begin, least(kPartKeys, end - begin), places[0]);
        int tile = 0;
        for (int64_t key = begin; key < end; key += kPartKeys, tile ^= 1) {
            const int64_t count = least(kPartKeys, end - key), next = least(kPartKeys, most(0, end - key - kPartKeys));
            cached_.find(key + kPartKeys, next, places[tile ^ 1]);
            const Number* rows[kPartKeys];
            take(places[tile], count, rows);
            int64_t fetched = 0;
            for (int64_t b = 0; b < blocks_; ++b) {
                block_[b].attend(rows, key, count, columns_, key == begin, weights_, [&] {
                    for (const int64_t last = least(next, fetched + kWidth / Pairs); fetched < last; ++fetched) {
                        fetch(places[tile ^ 1][fetched], row_bytes);
                    }
                });
            }
        }
    }

    void take(const char* const* places, int64_t count, const float** rows) const {
        cached_.take(places, count, kPartKeys, copies_, rows);
    }

    void take(const char* const* places, int64_t count, const uint16_t** rows) const {
        for (int64_t t = 0; t < kPartKeys; ++t) rows[t] = reinterpret_cast<const uint16_t*>(places[least(t, count - 1)]);
    }

    const CachedRows& cached_;
    const int64_t blocks_, columns_;
    float *weights_, *copies_;
    Block<Pairs> block_[kQueryLanes / Pairs];
};

}  // namespace milepost::MILEPOST_TARGET::mla
