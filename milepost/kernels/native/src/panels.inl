// Products of some rows with some panels of a matrix; linear and the experts are made of these.
//
// An output's sum runs over its inputs in order, one fused multiplication and addition an input, whatever the number of
// rows and however they are cut: blocks of inputs go on from the sums so far, and scales and `accumulate` come last. A
// group of MXFP4 is summed by itself and added with its scale.
//
// Few rows: weights are read once, from memory, straight into the sums' registers; several panels at once, for with one
// row a panel has fewer sums than multiplications are under way.
// More rows: x is brought to the thread's scratch in blocks that its second-level cache holds, a tile's rows at fixed
// distances, and each block of weights (in the first level) meets all tiles of rows, which meanwhile ask for the
// next block. Weights that are no floats are unpacked once a block, where many tiles would each have to convert them.
#pragma once

#include "scratch.h"
#include "weights.inl"

namespace milepost::MILEPOST_TARGET {

#if defined(__AVX512F__)
constexpr int kTileRows = 12;
constexpr int kTileVectors = 2;
constexpr int kFewRows = 6;
constexpr int kMostSums = 24;  // registers for sums
#elif defined(__AVX2__)
constexpr int kTileRows = 6;
constexpr int kTileVectors = 2;
constexpr int kFewRows = 3;
constexpr int kMostSums = 12;
#else
constexpr int kTileRows = 6;
constexpr int kTileVectors = 2;
constexpr int kFewRows = 1;
constexpr int kMostSums = 8;
#endif

constexpr int kPanelsAtOnce = kMostSums / kPanelVectors >= 4 ? 4 : kMostSums / kPanelVectors >= 2 ? 2 : 1;
constexpr int64_t kBlockInputs = 256;
constexpr int64_t kBlockRows = 10 * kTileRows;
constexpr int64_t kBlockPanels = 16;
constexpr int64_t kBlockFloats = 96 * 1024;  // of x

constexpr int64_t kProductFloats = kBlockInputs * kPanel + kBlockPanels * kBlockRows * kPanel + kBlockFloats;

static_assert(kBlockRows * kBlockInputs <= kBlockFloats);

struct SeparateRows {
    const float* const* row;
    float at(int r, int64_t k) const { return row[r][k]; }
};

struct BlockRows {
    const float* row;
    float at(int r, int64_t k) const { return row[r * kBlockInputs + k]; }
};

// What a loop over inputs asks the memory for beside its work.
template <class Weights, int Panels>
struct OwnLines {
    Weights weights;
    void fetch(int64_t k) const { weights.template fetch_ahead<Panels>(k); }
};

struct NextBlock {
    const uint8_t* at;
    int64_t step;  // bytes for an input
    void fetch(int64_t k) const {
        __builtin_prefetch(at + k * step);
        __builtin_prefetch(at + k * step + 64);
    }
};

// sums[r * Stride + o] += the products of row r with `inputs` weights of each output o of `Vectors` vectors, in order.
template <int Rows, int Vectors, int Stride, class Weights, class X, class Lines>
__attribute__((always_inline)) static inline void add_products(Weights weights, X x, int64_t inputs, Lines lines,
                                                               float* sums) {
    for (int64_t run = 0; run < inputs; run += inputs < Weights::kRun ? inputs : Weights::kRun) {
        const int64_t end = inputs - run < Weights::kRun ? inputs : run + Weights::kRun;
        VecF s[Rows][Vectors];
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < Vectors; ++v) s[r][v] = Weights::kScaled ? VecF{} : load(sums + r * Stride + v * kWidth);
        }
#pragma GCC unroll 2
        for (int64_t k = run; k < end; k += Weights::kStep) {
            lines.fetch(k);
#pragma GCC unroll 4
            for (int j = 0; j < Weights::kStep; ++j) {
                VecF w[Vectors];
                weights.get(k, j, w);
                for (int r = 0; r < Rows; ++r) {
                    const VecF value = splat(x.at(r, k + j));
                    for (int v = 0; v < Vectors; ++v) s[r][v] = multiply_add(w[v], value, s[r][v]);
                }
            }
        }
        for (int v = 0; v < Vectors; ++v) {
            const VecF scale = weights.scale(run, v);
            for (int r = 0; r < Rows; ++r) {
                float* const at = sums + r * Stride + v * kWidth;
                store(at, Weights::kScaled ? multiply_add(s[r][v], scale, load(at)) : s[r][v]);
            }
        }
    }
}

// Writes one panel's finished sums of one row.
static void finish(const Matrix& matrix, int64_t item, int64_t panel, const float* sums, float* y, bool accumulate) {
    const float* scales = matrix.format == Format::int8 ? matrix.scales + (item * matrix.panels() + panel) * kPanel : nullptr;
    const int64_t left = matrix.outputs - panel * kPanel;
    float results[kPanel], before[kPanel] = {};
    if (accumulate) std::memcpy(before, y, sizeof(float) * (left < kPanel ? left : kPanel));
    for (int64_t o = 0; o < kPanel; o += kWidth) {
        const VecF sum = load(sums + o), scale = scales ? load(scales + o) : splat(1.0f);
        store(results + o, accumulate ? multiply_add(sum, scale, load(before + o)) : sum * scale);
    }
    std::memcpy(y, results, sizeof(float) * (left < kPanel ? left : kPanel));
}

// --- few rows

template <class Weights, int Rows, int Panels>
static void few_rows(const Matrix& matrix, int64_t item, int64_t panel, const float* const* x, float* const* y,
                     bool accumulate) {
    constexpr int kVectors = Panels * kPanelVectors;
    const float* rows[Rows];
    for (int r = 0; r < Rows; ++r) rows[r] = x[r];
    float sums[Rows][Panels * kPanel] = {};
    const Weights weights(matrix.panel(item, panel), matrix.inputs, 0, 0);
    add_products<Rows, kVectors, Panels * kPanel>(weights, SeparateRows{rows}, matrix.inputs,
                                                  OwnLines<Weights, Panels>{weights}, sums[0]);
    for (int r = 0; r < Rows; ++r) {
        for (int p = 0; p < Panels; ++p) {
            finish(matrix, item, panel + p, sums[r] + p * kPanel, y[r] + p * kPanel, accumulate);
        }
    }
}

// Panels are taken `Panels` at once, the rest by half as many.
template <class Weights, int Rows, int Panels>
static void few_rows_of(const Matrix& matrix, int64_t item, int64_t panel, int64_t count, const float* const* x,
                        float* const* y, bool accumulate) {
    // Codes want registers for themselves while they become floats.
    constexpr int kMost = Weights::kScaled ? kMostSums / 3 * 2 : kMostSums;
    if constexpr (Panels > 1 && Rows * Panels * kPanelVectors > kMost) {
        few_rows_of<Weights, Rows, Panels / 2>(matrix, item, panel, count, x, y, accumulate);
    } else {
        float* at[Rows];
        for (int r = 0; r < Rows; ++r) at[r] = y[r];
        for (; count >= Panels; count -= Panels, panel += Panels) {
            few_rows<Weights, Rows, Panels>(matrix, item, panel, x, at, accumulate);
            for (int r = 0; r < Rows; ++r) at[r] += Panels * kPanel;
        }
        if constexpr (Panels > 1) few_rows_of<Weights, Rows, Panels / 2>(matrix, item, panel, count, x, at, accumulate);
    }
}

template <class Weights, int Rows = kFewRows>
static void few_rows_product(const Matrix& matrix, int64_t item, int64_t panel, int64_t count, const float* const* x,
                             float* const* y, int64_t rows, bool accumulate) {
    if constexpr (Rows > 0) {
        if (rows == Rows) return few_rows_of<Weights, Rows, kPanelsAtOnce>(matrix, item, panel, count, x, y, accumulate);
        few_rows_product<Weights, Rows - 1>(matrix, item, panel, count, x, y, rows, accumulate);
    }
}

// --- more rows

// `rows` rows cut into tiles of at most kTileRows, as even as can be: a tile of one row would wait for its sums.
struct Tiles {
    int64_t rows;
    int64_t count;

    explicit Tiles(int64_t all) : rows(all), count((all + kTileRows - 1) / kTileRows) {}
    int64_t begin(int64_t tile) const { return tile * rows / count; }
};

// Some rows' products with a block of one panel's weights.
template <class Weights>
struct Block {
    const uint8_t* panel;
    int64_t panel_inputs;
    int64_t from;
    int64_t inputs;
    const uint8_t* next;  // weights that will be wanted after these
    int64_t next_bytes;
    const float* x;   // [rows, kBlockInputs]
    float* sums;      // [rows, 32]
    float* unpacked;  // [kBlockInputs, 32]

    Weights weights(int64_t strip) const { return Weights(panel, panel_inputs, from, strip); }
};

// One tile of Rows rows from `first` on, reading weights as they are stored or the unpacked ones.
template <bool Unpacked, class Weights, int Rows>
static void tile_product(const Block<Weights>& block, int64_t first, const NextBlock& lines) {
    const BlockRows x{block.x + first * kBlockInputs};
    for (int64_t strip = 0; strip < kPanel; strip += kTileVectors * kWidth) {
        float* const sums = block.sums + first * kPanel + strip;
        const Weights stored = block.weights(strip);
        if constexpr (Unpacked) {
            const UnpackedWeights<Weights> weights(block.unpacked, stored, strip);
            add_products<Rows, kTileVectors, kPanel>(weights, x, block.inputs, lines, sums);
        } else {
            add_products<Rows, kTileVectors, kPanel>(stored, x, block.inputs, lines, sums);
        }
    }
}

template <bool Unpacked, class Weights, int Rows = kTileRows>
static void tile_of(const Block<Weights>& block, int64_t first, int64_t rows, const NextBlock& lines) {
    if constexpr (Rows > 0) {
        if (rows == Rows) return tile_product<Unpacked, Weights, Rows>(block, first, lines);
        tile_of<Unpacked, Weights, Rows - 1>(block, first, rows, lines);
    }
}

// Brings a block's weights to scratch as floats, [inputs, 32].
template <class Weights>
static void unpack(const Block<Weights>& block) {
    const Weights weights = block.weights(0);
    for (int64_t k = 0; k < block.inputs; k += Weights::kStep) {
#pragma GCC unroll 4
        for (int j = 0; j < Weights::kStep; ++j) {
            VecF w[kPanelVectors];
            weights.get(k, j, w);
            for (int v = 0; v < kPanelVectors; ++v) store(block.unpacked + (k + j) * kPanel + v * kWidth, w[v]);
        }
    }
}

template <bool Unpacked, class Weights>
static void block_tiles(const Block<Weights>& block, const Tiles& tiles) {
    const int64_t share = block.next_bytes / tiles.count, step = (share + block.inputs - 1) / block.inputs;
    for (int64_t t = 0; t < tiles.count; ++t) {
        const int64_t first = tiles.begin(t);
        tile_of<Unpacked>(block, first, tiles.begin(t + 1) - first, NextBlock{block.next + t * share, step});
    }
}

template <class Weights>
static void block_product(const Block<Weights>& block, const Tiles& tiles) {
    if constexpr (!std::is_same_v<Weights, PlainWeights<float>>) {
        if (kTileVectors < kPanelVectors || tiles.count > Weights::kMostTilesStored) {
            unpack(block);
            return block_tiles<true>(block, tiles);
        }
    }
    if constexpr (std::is_same_v<Weights, PlainWeights<float>> || kTileVectors == kPanelVectors) {
        block_tiles<false>(block, tiles);
    }
}

// Blocks of x [blocks, rows, kBlockInputs]: the last may be short.
static void gather_block(const float* const* x, int64_t rows, int64_t from, int64_t inputs, float* out) {
    for (int64_t k = 0; k < inputs; k += kBlockInputs) {
        const int64_t n = inputs - k < kBlockInputs ? inputs - k : kBlockInputs;
        for (int64_t r = 0; r < rows; ++r, out += kBlockInputs) std::memcpy(out, x[r] + from + k, n * sizeof(float));
    }
}

// At most kBlockRows rows and kBlockPanels panels.
template <class Weights>
static void blocks_product(const Matrix& matrix, int64_t item, int64_t panel, int64_t count, const float* const* x,
                           float* const* y, int64_t rows, bool accumulate) {
    float* const unpacked = scratch(kProductFloats);
    float* const sums = unpacked + kBlockInputs * kPanel;
    float* const gathered = sums + kBlockPanels * kBlockRows * kPanel;
    const Tiles tiles(rows);
    const int64_t inputs = matrix.inputs;
    const int64_t most = kBlockFloats / (rows * kBlockInputs) * kBlockInputs;  // inputs of x held at a time
    const int64_t apart = inputs > most ? rows * kPanel : 0;  // sums of several panels are kept only if need be
    for (int64_t from = 0; from < inputs; from += most) {
        const int64_t end = inputs - from < most ? inputs : from + most;
        gather_block(x, rows, from, end - from, gathered);
        for (int64_t p = 0; p < count; ++p) {
            const uint8_t* const weights = matrix.panel(item, panel + p);
            float* const panel_sums = sums + p * apart;
            if (from == 0) std::memset(panel_sums, 0, rows * kPanel * sizeof(float));
            const float* at = gathered;
            for (int64_t k = from; k < end; k += kBlockInputs, at += rows * kBlockInputs) {
                const int64_t n = end - k < kBlockInputs ? end - k : kBlockInputs;
                const uint8_t* next = k + n < end ? weights + Weights::bytes(k + n)
                                                  : matrix.panel(item, panel + p + 1) + Weights::bytes(from);
                block_product(Block<Weights>{weights, inputs, k, n, next, Weights::bytes(n), at, panel_sums, unpacked}, tiles);
            }
            if (end < inputs) continue;
            for (int64_t r = 0; r < rows; ++r) {
                finish(matrix, item, panel + p, panel_sums + r * kPanel, y[r] + p * kPanel, accumulate);
            }
        }
    }
}

template <class Weights>
static void many_rows_product(const Matrix& matrix, int64_t item, int64_t panel, int64_t count, const float* const* x,
                              float* const* y, int64_t rows, bool accumulate) {
    for (int64_t r = 0; r < rows; r += kBlockRows) {
        const int64_t n = rows - r < kBlockRows ? rows - r : kBlockRows;
        for (int64_t p = 0; p < count; p += kBlockPanels) {
            float* at[kBlockRows];
            for (int64_t i = 0; i < n; ++i) at[i] = y[r + i] + p * kPanel;
            const int64_t panels = count - p < kBlockPanels ? count - p : kBlockPanels;
            blocks_product<Weights>(matrix, item, panel + p, panels, x + r, at, n, accumulate);
        }
    }
}

template <class Weights>
static void weights_product(const Matrix& matrix, int64_t item, int64_t panel, int64_t count, const float* const* x,
                            float* const* y, int64_t rows, bool accumulate) {
    if (rows <= kFewRows) return few_rows_product<Weights>(matrix, item, panel, count, x, y, rows, accumulate);
    many_rows_product<Weights>(matrix, item, panel, count, x, y, rows, accumulate);
}

// y[r][:] (+)= the outputs of `count` panels for x[r]; y[r] points at the first panel's first output.
static void panels_product(const Matrix& matrix, int64_t item, int64_t panel, int64_t count, const float* const* x,
                           float* const* y, int64_t rows, bool accumulate) {
    switch (matrix.format) {
        case Format::f32: return weights_product<PlainWeights<float>>(matrix, item, panel, count, x, y, rows, accumulate);
        case Format::bf16: return weights_product<PlainWeights<uint16_t>>(matrix, item, panel, count, x, y, rows, accumulate);
        case Format::int8: return weights_product<PlainWeights<int8_t>>(matrix, item, panel, count, x, y, rows, accumulate);
        case Format::mxfp4: return weights_product<Mxfp4Weights>(matrix, item, panel, count, x, y, rows, accumulate);
    }
}

}  // namespace milepost::MILEPOST_TARGET
