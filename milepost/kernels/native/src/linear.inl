#include "linear.h"
#include "simd.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

// Two vectors of outputs and up to this many tokens fill the registers of every target.
constexpr int kTileRows = 6;
constexpr int kTileVectors = 2;
constexpr int64_t kLeastWork = 1 << 15;  // multiplications that pay for a thread

// sums[r] = x[r] w for `inputs` inputs of one strip of kTileVectors vectors of outputs; w is the strip's first weight.
template <int Rows, class Weight>
static inline void strip_product(const Weight* w, int64_t inputs, const float* const* x, VecF (&sums)[Rows][kTileVectors]) {
    for (int64_t k = 0; k < inputs; ++k, w += kPanel) {
        VecF weights[kTileVectors];
        for (int v = 0; v < kTileVectors; ++v) weights[v] = load(w + v * kWidth);
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < kTileVectors; ++v) sums[r][v] += weights[v] * x[r][k];
        }
    }
}

// One panel of MXFP4 as floats; scratch [inputs, 32].
static void unpack_mxfp4(const uint8_t* group, int64_t inputs, float* scratch) {
    constexpr float kCodes[16] = {0, .5, 1, 1.5, 2, 3, 4, 6, -0.f, -.5, -1, -1.5, -2, -3, -4, -6};
    for (int64_t g = 0; g < inputs / kGroup; ++g, group += kGroupBytes) {
        for (int64_t i = 0; i < kGroup; ++i, scratch += kPanel) {
            const uint8_t* codes = group + kPanel + i * kPanel / 2;
            for (int64_t o = 0; o < kPanel; ++o) {
                const int code = o < kPanel / 2 ? codes[o] & 15 : codes[o - kPanel / 2] >> 4;
                const float scale = group[o] == 255 ? NAN : std::ldexp(1.0f, group[o] - 127);
                scratch[o] = kCodes[code] * scale;
            }
        }
    }
}

template <int Rows, class Weight>
static void tile_product(const Weight* w, int64_t inputs, const float* scales, const float* const* x, float* const* y,
                         int64_t outputs, bool accumulate) {
    float results[Rows][kPanel];
    for (int64_t o = 0; o < kPanel; o += kTileVectors * kWidth) {
        VecF sums[Rows][kTileVectors] = {};
        strip_product<Rows>(w + o, inputs, x, sums);
        for (int r = 0; r < Rows; ++r) {
            for (int v = 0; v < kTileVectors; ++v) {
                const int64_t at = o + v * kWidth;
                store(results[r] + at, scales ? sums[r][v] * load(scales + at) : sums[r][v]);
            }
        }
    }
    for (int r = 0; r < Rows; ++r) {
        for (int64_t o = 0; o < outputs; ++o) y[r][o] = accumulate ? y[r][o] + results[r][o] : results[r][o];
    }
}

template <class Weight>
static void rows_product(const Weight* w, int64_t inputs, const float* scales, const float* const* x, float* const* y,
                         int64_t rows, int64_t outputs, bool accumulate) {
    int64_t r = 0;
    for (; r + kTileRows <= rows; r += kTileRows) {
        tile_product<kTileRows>(w, inputs, scales, x + r, y + r, outputs, accumulate);
    }
    for (; r < rows; ++r) tile_product<1>(w, inputs, scales, x + r, y + r, outputs, accumulate);
}

// y[r][:] (+)= the panel's outputs for x[r]; y points at the panel's first output.
static void panel_product(const Matrix& matrix, int64_t item, int64_t panel, const float* const* x, float* const* y,
                          int64_t rows, bool accumulate) {
    const uint8_t* w = matrix.panel(item, panel);
    const int64_t left = matrix.outputs - panel * kPanel;
    const int64_t outputs = left < kPanel ? left : kPanel;
    const int64_t inputs = matrix.inputs;
    switch (matrix.format) {
        case Format::f32:
            return rows_product(reinterpret_cast<const float*>(w), inputs, nullptr, x, y, rows, outputs, accumulate);
        case Format::bf16:
            return rows_product(reinterpret_cast<const uint16_t*>(w), inputs, nullptr, x, y, rows, outputs, accumulate);
        case Format::int8:
            return rows_product(reinterpret_cast<const int8_t*>(w), inputs,
                                matrix.scales + (item * matrix.panels() + panel) * kPanel, x, y, rows, outputs, accumulate);
        case Format::mxfp4: {
            float* scratch = new float[inputs * kPanel];
            unpack_mxfp4(w, inputs, scratch);
            rows_product(scratch, inputs, nullptr, x, y, rows, outputs, accumulate);
            delete[] scratch;
        }
    }
}

static void linear(const LinearArgs& args) {
    const Matrix& matrix = *args.matrix;
    const int64_t work = args.rows * matrix.inputs * kPanel;
    parallel_for(matrix.batch * matrix.panels(), kLeastWork / (work + 1) + 1, [&](int64_t begin, int64_t end) {
        constexpr int64_t kRowsAtOnce = 120;
        const float* x[kRowsAtOnce];
        float* y[kRowsAtOnce];
        for (int64_t at = begin; at < end; ++at) {
            const int64_t item = at / matrix.panels(), panel = at % matrix.panels();
            for (int64_t first = 0; first < args.rows; first += kRowsAtOnce) {
                const int64_t rows = args.rows - first < kRowsAtOnce ? args.rows - first : kRowsAtOnce;
                for (int64_t r = 0; r < rows; ++r) {
                    x[r] = args.x + item * args.x_batch_stride + (first + r) * args.x_stride;
                    y[r] = args.y + item * args.y_batch_stride + (first + r) * args.y_stride + panel * kPanel;
                }
                panel_product(matrix, item, panel, x, y, rows, args.accumulate);
            }
        }
    });
}

}  // namespace milepost::MILEPOST_TARGET
