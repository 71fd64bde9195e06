// Tiles of attention that stay in cache: products, masked online softmax, weighted sums.
//
// Queries lie side by side in the lanes of vectors, kQueryLanes of them. A query's results depend on the keys and their
// order alone, never on the lane or on the queries beside it.
#pragma once

#include "mla.h"
#include "simd.h"
#include "scratch.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET::mla {

constexpr int64_t kKeys = 64;  // cached rows taken at a time
constexpr float kHidden = -1e30f;  // score of what a query may not see
constexpr int64_t kPadding = 16;
constexpr int64_t kDepth = 256;  // of a product's panel that stays in the first cache with the rows that it meets
static_assert(kQueryLanes == kPanel, "queries are a panel of columns");

#if defined(__AVX512F__)
constexpr int kRows = 8;  // with two vectors of columns they leave the latency of no sum bare
constexpr int kMixRows = 8, kMixVectors = 3;
#else
constexpr int kRows = 4;
constexpr int kMixRows = 4, kMixVectors = 3;
#endif

// Lets the second cache get ahead of what is read next.
static inline void fetch(const char* from, int64_t bytes) {
    for (int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

// Cuts one block of memory into pieces.
struct Pieces {
    float* at;

    float* take(int64_t floats) {
        float* piece = at;
        at += rounded_up(floats, kPadding);
        return piece;
    }
};

// 2^x for x <= 0 to about 1 unit in the last place, 0 below -126.5; a NaN stays one.
// The polynomial is Taylor's of e^(r ln 2) for |r| <= 1/2.
static inline VecF exp2_of_negative(VecF x) {
    const VecF shifter = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer, in the lowest bits
    const VecF least = splat(-127.0f);        // whose power of two has the bits of 0
    const VecF clamped = x < least ? least : x;
    const VecF shifted = clamped + shifter;
    const VecF r = clamped - (shifted - shifter);
    VecF p = splat(1.54035303933816099544e-4f);
    p = p * r + 1.33335581464284434234e-3f;
    p = p * r + 9.61812910762847716198e-3f;
    p = p * r + 5.55041086648215799532e-2f;
    p = p * r + 2.40226506959100712334e-1f;
    p = p * r + 6.93147180559945309417e-1f;
    p = p * r + 1.0f;
    return p * floats((bits(shifted) << 23) + 0x3F800000u);
}

// c[r] (+)= sum over k of a[r][k] b[k], for kRows rows and so many vectors of columns.
template <int Vectors>
static inline void product_strip(const float* const* a, int64_t first, int64_t last, const float* b, bool add, float* c,
                                 int64_t c_stride) {
    VecF sums[kRows][Vectors] = {};
    if (add) {
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < Vectors; ++v) sums[r][v] = load(c + r * c_stride + v * kWidth);
        }
    }
    b += first * kPanel;
    for (int64_t k = first; k < last; ++k, b += kPanel) {
        VecF columns[Vectors];
        for (int v = 0; v < Vectors; ++v) columns[v] = load(b + v * kWidth);
        for (int r = 0; r < kRows; ++r) {
            for (int v = 0; v < Vectors; ++v) sums[r][v] += columns[v] * a[r][k];
        }
    }
    for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < Vectors; ++v) store(c + r * c_stride + v * kWidth, sums[r][v]);
    }
}

// c[r] = sum over k of a[r][k] b[k]. b is in panels of 32 columns, [columns / 32, depth, 32]; columns are a multiple
// of kWidth. Rows are computed up to a multiple of kRows: a has that many, c has room for them.
static void product(const float* const* a, int64_t rows, int64_t depth, const float* b, int64_t columns, float* c,
                    int64_t c_stride) {
    const int64_t cuts = (depth + kDepth - 1) / kDepth, size = cuts > 0 ? (depth + cuts - 1) / cuts : 0;
    for (int64_t first = 0; first < columns; first += kPanel, b += depth * kPanel) {
        const int64_t width = least(kPanel, columns - first);
        for (int64_t k = 0; k < most(depth, 1); k += most(size, 1)) {
            const int64_t last = least(k + size, depth);
            for (int64_t r = 0; r < rows; r += kRows) {
                float* target = c + r * c_stride + first;
                int64_t at = 0;
                for (; at + 2 * kWidth <= width; at += 2 * kWidth) {
                    product_strip<2>(a + r, k, last, b + at, k > 0, target + at, c_stride);
                }
                if (at < width) product_strip<1>(a + r, k, last, b + at, k > 0, target + at, c_stride);
            }
        }
    }
}

// Scores [keys, kQueryLanes] of keys after a lane's last one become kHidden.
static void hide(float* scores, int64_t keys, int64_t lanes, const int32_t* last_key) {
    for (int64_t at = 0; at < lanes; at += kWidth) {
        VecI last;
        std::memcpy(&last, last_key + at, sizeof last);
        for (int64_t t = 0; t < keys; ++t) {
            float* score = scores + t * kQueryLanes + at;
            const VecI hidden = static_cast<int32_t>(t) > last;
            store(score, hidden ? splat(kHidden) : load(score));
        }
    }
}

// The online softmax's running numbers (arXiv:1805.02867) of kQueryLanes queries; scores are in units of ln 2.
struct Softmax {
    float* top;    // largest score so far
    float* total;  // sum of 2^(score - top) so far

    // Turns a tile's scores [keys, kQueryLanes] into weights. `shrink` is what earlier sums are worth now.
    void add(float* scores, int64_t keys, int64_t lanes, bool first, float* shrink) const {
        for (int64_t at = 0; at < lanes; at += kWidth) {
            float* column = scores + at;
            const VecF before = first ? splat(kHidden) : load(top + at);
            VecF now = before;
            for (int64_t t = 0; t < keys; ++t) {
                const VecF score = load(column + t * kQueryLanes);
                now = now < score ? score : now;
            }
            const VecF factor = exp2_of_negative(before - now);
            VecF sum = first ? VecF{} : load(total + at) * factor;
            for (int64_t t = 0; t < keys; ++t) {
                const VecF weight = exp2_of_negative(load(column + t * kQueryLanes) - now);
                store(column + t * kQueryLanes, weight);
                sum += weight;
            }
            store(top + at, now);
            store(total + at, sum);
            store(shrink + at, factor);
        }
    }
};

template <int Vectors>
static inline void mix_strip(const float* weights, const float* const* values, int64_t offset, int64_t keys, bool first,
                             const float* shrink, float* sums_at, int64_t stride) {
    VecF sums[kMixRows][Vectors] = {};
    if (!first) {
        for (int r = 0; r < kMixRows; ++r) {
            for (int v = 0; v < Vectors; ++v) sums[r][v] = load(sums_at + r * stride + v * kWidth) * shrink[r];
        }
    }
    for (int64_t t = 0; t < keys; ++t, weights += kQueryLanes) {
        VecF value[Vectors];
        for (int v = 0; v < Vectors; ++v) value[v] = load(values[t] + offset + v * kWidth);
        for (int r = 0; r < kMixRows; ++r) {
            for (int v = 0; v < Vectors; ++v) sums[r][v] += value[v] * weights[r];
        }
    }
    for (int r = 0; r < kMixRows; ++r) {
        for (int v = 0; v < Vectors; ++v) store(sums_at + r * stride + v * kWidth, sums[r][v]);
    }
}

// sums[q] = sums[q] shrink[q] + sum over keys of weights[key, q] values[key], for so many queries (rounded up to
// kMixRows) and columns (rounded up to kWidth).
static void mix(const float* weights, int64_t queries, const float* const* values, int64_t keys, int64_t columns,
                bool first, const float* shrink, float* sums, int64_t stride) {
    constexpr int64_t kStrip = kMixVectors * kWidth;
    for (int64_t at = 0; at < columns; at += kStrip) {
        const int64_t vectors = (least(kStrip, columns - at) + kWidth - 1) / kWidth;
        for (int64_t q = 0; q < queries; q += kMixRows) {
            float* target = sums + q * stride + at;
            if (vectors == 3) {
                mix_strip<3>(weights + q, values, at, keys, first, shrink + q, target, stride);
            } else if (vectors == 2) {
                mix_strip<2>(weights + q, values, at, keys, first, shrink + q, target, stride);
            } else {
                mix_strip<1>(weights + q, values, at, keys, first, shrink + q, target, stride);
            }
        }
    }
}

// One row's cached rows of one layer, some positions at a time.
struct CachedRows {
    const Kv& kv;
    const int64_t* blocks;
    int64_t layer;
    int64_t lora;

    CachedRows(const Kv& view, int64_t row, int64_t layer_index, int64_t latent)
        : kv(view), blocks(view.table + row * view.blocks), layer(layer_index), lora(latent) {}

    // Elements from copy to copy.
    int64_t stride() const { return rounded_up(kv.row_dim, kPadding); }

    // Where positions begin .. begin + count - 1 lie.
    void find(int64_t begin, int64_t count, const char** places) const {
        const int64_t element = bytes_of(kv.type), row_bytes = kv.row_dim * element;
        for (int64_t found = 0; found < count;) {
            const int64_t block = (begin + found) / kv.block_size, first = (begin + found) % kv.block_size;
            const int64_t last = found + least(kv.block_size - first, count - found);
            const char* at = static_cast<const char*>(kv.cache) + first * row_bytes +
                             (blocks[block] * kv.page_stride + layer * kv.layer_stride) * element;
            for (; found < last; ++found, at += row_bytes) places[found] = at;
        }
    }

    // Whether rows can be read as whole vectors where they lie, and so their latents.
    bool whole() const { return lora % kWidth == 0 && kv.row_dim % kWidth == 0; }

    // Points `rows` at what was found as float32, and at the last one again up to `most`: at the cache itself, or at
    // copies [count, stride()] of bf16 rows and of those that are no whole vectors, zeros behind them.
    void take(const char* const* places, int64_t count, int64_t most, float* copies, const float** rows) const {
        for (int64_t t = 0; t < count; ++t) {
            float* copy = copies + t * stride();
            rows[t] = kv.type == Float::bf16 ? as_floats(reinterpret_cast<const uint16_t*>(places[t]), copy)
                                             : as_floats(reinterpret_cast<const float*>(places[t]), copy);
        }
        for (int64_t t = count; t < most; ++t) rows[t] = rows[count - 1];
    }

private:
    const float* as_floats(const float* row, float* copy) const {
        return whole() ? row : copied(row, copy);
    }

    const float* as_floats(const uint16_t* row, float* copy) const { return copied(row, copy); }

    template <class Number>
    const float* copied(const Number* row, float* copy) const {
        int64_t d = 0;
        for (; d + kWidth <= kv.row_dim; d += kWidth) store(copy + d, load(row + d));
        for (; d < kv.row_dim; ++d) copy[d] = widen(row[d]);
        for (; d < stride(); ++d) copy[d] = 0;
        return copy;
    }
};

// Sizes of one call.
struct Dims {
    int64_t heads, lora, rope, nope, v;

    explicit Dims(const MlaAttentionArgs& args)
        : heads(args.k_b->batch),
          lora(args.k_b->outputs),
          rope(args.kv->row_dim - args.k_b->outputs),
          nope(args.k_b->inputs),
          v(args.v_b->outputs) {}

    int64_t qk() const { return nope + rope; }

    // Scores come in units of ln 2.
    float scale() const { return 1.44269504088896340736f / std::sqrt(static_cast<float>(qk())); }
};

// result[i] = sums[i] * factor * sigmoid(gate[i]); no gate when null.
static inline void finish(const float* sums, float factor, const float* gate, float* result, int64_t size) {
    int64_t i = 0;
    for (; i + kWidth <= size; i += kWidth) {
        const VecF x = load(sums + i) * factor;
        store(result + i, gate == nullptr ? x : x * sigmoid(load(gate + i)));
    }
    for (; i < size; ++i) {
        const float x = sums[i] * factor;
        result[i] = gate == nullptr ? x : x * sigmoid(splat(gate[i]))[0];
    }
}

}  // namespace milepost::MILEPOST_TARGET::mla
