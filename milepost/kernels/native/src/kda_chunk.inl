// KDA over chunks of a row's tokens: everything inside a chunk as small matrix products, one state update a chunk.
//
// With a_t = exp(g_t), P_i the product of a over tokens 0 .. i of a chunk and S the state before it ([k, v] here), the
// recurrence unrolls to
//
//     L_ij = sum_d k_i k_j a_{j+1} .. a_i       i > j           `overlap`
//     A_ij = sum_d q_i k_j a_{j+1} .. a_i       i >= j          `mixed`
//     c_i  = beta_i (v_i - (P_i k_i) S - sum_{j<i} L_ij c_j)    the corrections, by forward substitution
//     o_i  = (P_i q_i) S + sum_{j<=i} A_ij c_j
//     S'   = diag(P_last) S + sum_j (k_j a_{j+1} .. a_last) c_j^T
//
// (Kimi K3 technical report, section 2.1.1, in another order.) Decays are products of factors in [0, 1] and never
// quotients, so nothing overflows however strong the gate, and a decay across few tokens is exact however far the gate
// has fallen before them: every key of the chunk is multiplied by each later token's decay in turn, which makes both
// L and A, and at the end the keys that the update needs.
//
// A chunk is short: the two products with S and the update take 3 d^2 multiplications a token whatever its length, and
// what is added inside grows with it. The state stays in the thread's cache from the first chunk to the last, columns
// (v) side by side in strips of two vectors, so that every product reads vectors and broadcasts.
#pragma once

#include "kda.h"
#include "kda_state.inl"
#include "lanes.h"
#include "scratch.h"

namespace milepost::MILEPOST_TARGET {

constexpr int kChunk = kKdaChunk;
constexpr int kStrip = 2 * kWidth;
constexpr int kProductRows = kWidth >= 16 ? 8 : 4;  // with two vectors each, what the registers hold

// The scores of token i with the i tokens before it: L_i0 .. and A_i0 .., behind those of earlier tokens.
static inline int64_t first_score(int64_t i) { return i * (i - 1); }
constexpr int64_t kScores = kChunk * (kChunk - 1);  // a multiple of every target's width

// One thread's memory for one head of one row; pads of rows are zeros. Rows of tokens that a short chunk lacks hold
// whatever was there before: what is computed from them is not used.
struct ChunkWork {
    int64_t dim;
    int64_t width;   // dim in whole vectors
    int64_t strips;  // of kStrip columns
    float* state;    // [strips, width, kStrip]
    float* in;       // [2 * kChunk, width] P k above P q
    float* keys;     // [kChunk, width] k a_{j+1} .. of the tokens so far
    float* upto;     // [width] P
    float* decay;    // [width] a token's a
    float* q;        // [width] and its query
    float q_norm[kChunk];
    float k_norm[kChunk];
    float own[kChunk];  // A_ii
    float beta[kChunk];
    float scores[kScores];

    const float* overlap(int64_t i) const { return scores + first_score(i); }
    const float* mixed(int64_t i) const { return scores + first_score(i) + i; }  // but for A_ii
};

static ChunkWork chunk_work(int64_t dim) {
    const int64_t width = rounded_up(dim, kWidth), strips = pieces(dim, kStrip);
    const int64_t state = strips * width * kStrip;
    float* memory = scratch(state + (3 * kChunk + 3) * width);
    ChunkWork w;
    w.dim = dim, w.width = width, w.strips = strips;
    w.state = memory;
    w.in = memory + state;
    w.keys = w.in + 2 * kChunk * width;
    w.upto = w.keys + kChunk * width;
    w.decay = w.upto + width;
    w.q = w.decay + width;
    return w;
}

// sums[r] += sum_j a[r * row + j * step] b[j], for rows b of one strip.
template <int Rows>
static inline void add_products(VecF (&sums)[Rows][2], const float* a, int64_t row, int64_t step, const float* b, int64_t inner) {
    for (int64_t j = 0; j < inner; ++j, a += step, b += kStrip) {
        const VecF left = load(b), right = load(b + kWidth);
        for (int r = 0; r < Rows; ++r) {
            sums[r][0] += left * a[r * row];
            sums[r][1] += right * a[r * row];
        }
    }
}

// What each token's query and key are to be multiplied by, and the product of both after that.
static void norm_tokens(ChunkWork& w, const KdaArgs& args, int64_t head, int64_t token, int64_t count) {
    VecF squares[3][kChunk] = {};
    for (int64_t i = 0; i < count; ++i) {
        const float* q = args.q + (token + i) * args.q_stride + head * w.dim;
        const float* k = args.k + (token + i) * args.k_stride + head * w.dim;
        for (int64_t d = 0; d < w.dim; d += kWidth) {
            const VecF x = load_first(q + d, w.dim - d), y = load_first(k + d, w.dim - d);
            squares[0][i] += x * x;
            squares[1][i] += y * y;
            squares[2][i] += x * y;
        }
    }
    for (int64_t i = 0; i < kChunk; i += kWidth) {
        for (auto& kind : squares) fold_all(kind + i);
        const VecF q = 1.0f / square_root((squares[0][i] + args.l2_eps) * static_cast<float>(w.dim));
        const VecF k = 1.0f / square_root(squares[1][i] + args.l2_eps);
        store(w.q_norm + i, q);
        store(w.k_norm + i, k);
        store(w.own + i, squares[2][i] * q * k);
    }
}

// Token i's decay, key and query, and their products with P.
static void begin_token(ChunkWork& w, const KdaArgs& args, int64_t head, int64_t token, int64_t i) {
    const float* q = args.q + token * args.q_stride + head * w.dim;
    const float* k = args.k + token * args.k_stride + head * w.dim;
    const float* g = args.g + token * args.g_stride + head * w.dim;
    for (int64_t d = 0; d < w.dim; d += kWidth) {
        const VecF decay = exp(load_first(g + d, w.dim - d));
        const VecF key = load_first(k + d, w.dim - d) * w.k_norm[i], query = load_first(q + d, w.dim - d) * w.q_norm[i];
        const VecF upto = i == 0 ? decay : load(w.upto + d) * decay;
        store(w.decay + d, decay);
        store(w.q + d, query);
        store(w.upto + d, upto);
        store(w.keys + i * w.width + d, key);
        store(w.in + i * w.width + d, key * upto);
        store(w.in + (kChunk + i) * w.width + d, query * upto);
    }
}

// Multiplies `Keys` earlier keys by token i's decay, and with its key and query: lanes of the sums.
template <int Keys>
static inline void decay_keys(const ChunkWork& w, int64_t i, float* keys, VecF* with_k, VecF* with_q) {
    VecF k_sums[Keys] = {}, q_sums[Keys] = {};
    const float* own = w.keys + i * w.width;
    for (int64_t d = 0; d < w.width; d += kWidth) {
        const VecF decay = load(w.decay + d), k = load(own + d), q = load(w.q + d);
        for (int j = 0; j < Keys; ++j) {
            const VecF key = load(keys + j * w.width + d) * decay;
            store(keys + j * w.width + d, key);
            k_sums[j] += key * k;
            q_sums[j] += key * q;
        }
    }
    for (int j = 0; j < Keys; ++j) with_k[j] = k_sums[j], with_q[j] = q_sums[j];
}

// Everything of a chunk that doesn't depend on the state.
static void prepare_chunk(ChunkWork& w, const KdaArgs& args, int64_t head, int64_t token, int64_t count) {
    norm_tokens(w, args, head, token, count);
    VecF lanes[kScores];
    for (int64_t i = 0; i < count; ++i) {
        begin_token(w, args, head, token + i, i);
        w.beta[i] = args.beta[(token + i) * args.beta_stride + head];
        VecF *with_k = lanes + first_score(i), *with_q = with_k + i;
        int64_t j = 0;
        for (; j + 4 <= i; j += 4) decay_keys<4>(w, i, w.keys + j * w.width, with_k + j, with_q + j);
        for (; j < i; ++j) decay_keys<1>(w, i, w.keys + j * w.width, with_k + j, with_q + j);
    }
    const int64_t scores = first_score(count);
    for (int64_t n = scores; n < kScores && n % kWidth; ++n) lanes[n] = VecF{};
    for (int64_t n = 0; n < scores; n += kWidth) {
        fold_all(lanes + n);
        store(w.scores + n, lanes[n]);
    }
}

// read[r] = in[r] S for the tokens' keys and queries.
static void read_strip(const ChunkWork& w, const float* state, int64_t count, float (*read)[kStrip]) {
    for (int64_t part = 0; part < 2 * kChunk; part += kChunk) {
        for (int64_t r = part; r < part + count; r += kProductRows) {
            VecF sums[kProductRows][2] = {};
            add_products<kProductRows>(sums, w.in + r * w.width, w.width, 1, state, w.width);
            for (int n = 0; n < kProductRows; ++n) store(read[r + n], sums[n][0]), store(read[r + n] + kWidth, sums[n][1]);
        }
    }
}

// The corrections of one strip's columns; v is the first token's first element of them, `columns` of which exist.
static void correct_strip(const ChunkWork& w, const float* v, int64_t v_stride, int64_t columns, int64_t count,
                          const float (*read)[kStrip], float (*c)[kStrip]) {
    const int64_t right = most(0, columns - kWidth);
    for (int64_t i = 0; i < count; ++i, v += v_stride) {
        const float* overlap = w.overlap(i);
        VecF x = load_first(v, columns) - load(read[i]);
        VecF y = right ? load_first(v + kWidth, right) - load(read[i] + kWidth) : VecF{};
        for (int64_t j = 0; j < i; ++j) {
            x -= load(c[j]) * overlap[j];
            y -= load(c[j] + kWidth) * overlap[j];
        }
        store(c[i], x * w.beta[i]);
        store(c[i] + kWidth, y * w.beta[i]);
    }
}

static void write_strip(const ChunkWork& w, int64_t columns, int64_t count, const float (*read)[kStrip],
                        const float (*c)[kStrip], float* o, int64_t o_stride) {
    for (int64_t i = 0; i < count; ++i, o += o_stride) {
        const float* mixed = w.mixed(i);
        VecF x = load(read[kChunk + i]) + load(c[i]) * w.own[i], y = load(read[kChunk + i] + kWidth) + load(c[i] + kWidth) * w.own[i];
        for (int64_t j = 0; j < i; ++j) {
            x += load(c[j]) * mixed[j];
            y += load(c[j] + kWidth) * mixed[j];
        }
        store_first(o, x, columns);
        if (columns > kWidth) store_first(o + kWidth, y, columns - kWidth);
    }
}

static void update_strip(const ChunkWork& w, float* state, int64_t count, const float (*c)[kStrip]) {
    for (int64_t k = 0; k < w.width; k += kProductRows) {
        VecF sums[kProductRows][2];
        float* at = state + k * kStrip;
        for (int r = 0; r < kProductRows; ++r) {
            sums[r][0] = load(at + r * kStrip) * w.upto[k + r];
            sums[r][1] = load(at + r * kStrip + kWidth) * w.upto[k + r];
        }
        add_products<kProductRows>(sums, w.keys + k, 1, w.width, c[0], count);
        for (int r = 0; r < kProductRows; ++r) store(at + r * kStrip, sums[r][0]), store(at + r * kStrip + kWidth, sums[r][1]);
    }
}

static void advance_chunk(ChunkWork& w, const KdaArgs& args, int64_t head, int64_t token, int64_t count) {
    prepare_chunk(w, args, head, token, count);
    float read[2 * kChunk][kStrip], c[kChunk][kStrip];
    for (int64_t strip = 0; strip < w.strips; ++strip) {
        float* state = w.state + strip * w.width * kStrip;
        const int64_t first = strip * kStrip, columns = least(kStrip, w.dim - first);
        read_strip(w, state, count, read);
        correct_strip(w, args.v + token * args.v_stride + head * w.dim + first, args.v_stride, columns, count, read, c);
        write_strip(w, columns, count, read, c, args.o + (token * args.heads + head) * w.dim + first, args.heads * w.dim);
        update_strip(w, state, count, c);
    }
}

// kWidth rows of the matrix in tiles, from row n on, to or from as many columns of the work.
template <bool Store>
static void move_rows(ChunkWork& w, const States& states, const int64_t* pages, int64_t first, int64_t n) {
    float* columns = w.state + n / kStrip * w.width * kStrip + n % kStrip;
    float* rows[kWidth];
    const int64_t count = least(kWidth, w.dim - n);
    for (int64_t r = 0; r < count; ++r) rows[r] = matrix_row(states, pages, first, n + r);
    for (int64_t k = 0; k < w.width; k += kWidth) {
        VecF block[kWidth] = {};
        if (Store) {
            for (int i = 0; i < kWidth; ++i) block[i] = load(columns + (k + i) * kStrip);
            transpose(block);
            for (int64_t r = 0; r < count; ++r) store_first(rows[r] + k, block[r], w.dim - k);
        } else {
            for (int64_t r = 0; r < count; ++r) block[r] = load_first(rows[r] + k, w.dim - k);
            transpose(block);
            for (int i = 0; i < kWidth; ++i) store(columns + (k + i) * kStrip, block[i]);
        }
    }
}

static void load_state(ChunkWork& w, const States& states, const int64_t* pages, int64_t first) {
    for (int64_t n = 0; n < w.strips * kStrip; n += kWidth) move_rows<false>(w, states, pages, first, n);
}

static void store_state(ChunkWork& w, const States& states, const int64_t* pages, int64_t first) {
    for (int64_t n = 0; n < w.dim; n += kWidth) move_rows<true>(w, states, pages, first, n);
}

// One head of a row of any length, cut at multiples of kChunk and at the row's snapshots.
static void chunk_row(const KdaArgs& args, int64_t row, int64_t head) {
    const States& states = *args.states;
    const Rows& rows = *args.rows;
    ChunkWork w = chunk_work(states.head_dim);
    const int64_t first = args.first_tile + head * (w.dim / states.tile_rows);
    const int64_t* pages = states.table + row * states.pages;
    const int64_t begin = rows.cu_seqlens[row], end = rows.cu_seqlens[row + 1], start = rows.starts[row];
    if (start > 0) load_state(w, states, pages, first);
    else std::memset(w.state, 0, static_cast<size_t>(w.strips * w.width * kStrip) * sizeof(float));
    int64_t left = snapshot_behind(states, begin);
    for (int64_t token = begin; token < end;) {
        int64_t to = least(end, token + kChunk - (start + token - begin) % kChunk);
        const bool leaves = left < states.num_snapshots && states.snapshot_ends[left] <= to;
        if (leaves) to = states.snapshot_ends[left];
        advance_chunk(w, args, head, token, to - token);
        if (leaves) store_state(w, states, states.snapshot_table + left++ * states.snapshot_pages, first);
        token = to;
    }
    store_state(w, states, pages, first);
}

}  // namespace milepost::MILEPOST_TARGET
