#pragma once

#include "norm.h"
#include "rows.inl"

namespace milepost::MILEPOST_TARGET {

// Sums over a row run in four vectors, so that additions need not wait for one another.
constexpr int kSums = 4;

static inline float total(const VecF (&sums)[kSums]) { return sum((sums[0] + sums[1]) + (sums[2] + sums[3])); }

static inline float sum_of_squares(const float* x, int64_t dim) {
    VecF sums[kSums] = {};
    int64_t i = 0;
    for (; i + kSums * kWidth <= dim; i += kSums * kWidth) {
        for (int s = 0; s < kSums; ++s) {
            const VecF v = load(x + i + s * kWidth);
            sums[s] += v * v;
        }
    }
    for (; i + kWidth <= dim; i += kWidth) {
        const VecF v = load(x + i);
        sums[0] += v * v;
    }
    float result = total(sums);
    for (; i < dim; ++i) result += x[i] * x[i];
    return result;
}

static inline float inverse_root(float squares, int64_t dim, float eps) {
    return 1.0f / std::sqrt(squares / static_cast<float>(dim) + eps);
}

static inline void norm_row(const float* x, const float* weight, int64_t dim, float eps, float* out) {
    const float scale = inverse_root(sum_of_squares(x, dim), dim, eps);
    int64_t i = 0;
    for (; i + kWidth <= dim; i += kWidth) store(out + i, load(x + i) * scale * load(weight + i));
    for (; i < dim; ++i) out[i] = x[i] * scale * weight[i];
}

static void rms_norm(const RmsNormArgs& args) {
    for_each(args.rows, rows_for_a_thread(args.dim), [&](int64_t row) {
        norm_row(args.x + row * args.x_stride, args.weight, args.dim, args.eps, args.out + row * args.dim);
    });
}

// <x / rms(x), site>, with one look at x.
static inline float source_score(const float* x, const float* site, int64_t dim, float eps) {
    VecF squares[kSums] = {}, products[kSums] = {};
    int64_t i = 0;
    for (; i + kSums * kWidth <= dim; i += kSums * kWidth) {
        for (int s = 0; s < kSums; ++s) {
            const VecF v = load(x + i + s * kWidth);
            squares[s] += v * v;
            products[s] += v * load(site + i + s * kWidth);
        }
    }
    for (; i + kWidth <= dim; i += kWidth) {
        const VecF v = load(x + i);
        squares[0] += v * v;
        products[0] += v * load(site + i);
    }
    float square = total(squares), product = total(products);
    for (; i < dim; ++i) {
        square += x[i] * x[i];
        product += x[i] * site[i];
    }
    return product * inverse_root(square, dim, eps);
}

// In place: scores become shares. Entries behind the last, up to a whole vector, are written too.
static inline void softmax(float* scores, int64_t count) {
    float top = scores[0];
    // A NaN score must win, not vanish: all shares are NaN then.
    for (int64_t i = 1; i < count; ++i) top = scores[i] <= top ? top : scores[i];
    const int64_t padded = rounded_up(count, kWidth);
    for (int64_t i = count; i < padded; ++i) scores[i] = -INFINITY;
    float whole = 0;
    for (int64_t i = 0; i < padded; i += kWidth) {
        const VecF e = exp(load(scores + i) - top);
        store(scores + i, e);
        whole += sum(e);
    }
    for (int64_t i = 0; i < padded; ++i) scores[i] /= whole;
}

// out = sum of shares[s] * sources[s][offset ..]
static inline void mix(const AttnResArgs& args, int64_t offset, const float* shares, float* out) {
    int64_t i = 0;
    for (; i + kWidth <= args.dim; i += kWidth) {
        VecF v = {};
        for (int64_t s = 0; s < args.num_sources; ++s) v += load(args.sources[s] + offset + i) * shares[s];
        store(out + i, v);
    }
    for (; i < args.dim; ++i) {
        float v = 0;
        for (int64_t s = 0; s < args.num_sources; ++s) v += args.sources[s][offset + i] * shares[s];
        out[i] = v;
    }
}

static void attn_res(const AttnResArgs& args) {
    const int64_t dim = args.dim;
    for_each(args.tokens, rows_for_a_thread(dim * args.num_sources), [&](int64_t t) {
        float shares[kMostSources] = {};
        float* out = args.out + t * dim;
        for (int64_t s = 0; s < args.num_sources; ++s) {
            shares[s] = source_score(args.sources[s] + t * dim, args.site, dim, args.eps);
        }
        softmax(shares, args.num_sources);
        mix(args, t * dim, shares, out);
        norm_row(out, args.weight, dim, args.eps, out);
    });
}

}  // namespace milepost::MILEPOST_TARGET
