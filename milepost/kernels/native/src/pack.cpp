#include "pack.h"

#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstring>

#include "counts.h"
#include "floats.h"
#include "threads.h"

namespace milepost {
namespace {

constexpr int64_t kTogether = 16;  // inputs that are transposed at once: one line of the caches a row

template <class From, class To>
void convert(From x, To* out) {
    narrow(widen(x), out);
}

void convert(uint16_t x, uint16_t* out) { *out = x; }

// Rows of one panel: outputs `lane` .. `lane + count` of it, from row `from` of the span on.
struct Lanes {
    int64_t panel;
    int64_t lane;
    int64_t count;
    int64_t from;
};

template <class Body>
void for_each_panel(const RowSpan& span, Body&& body) {
    const int64_t first = span.first / kPanel, last = (span.first + span.count - 1) / kPanel;
    for_each(last - first + 1, 1, [&](int64_t at) {
        const int64_t panel = first + at, start = most(panel * kPanel, span.first);
        const int64_t stop = least((panel + 1) * kPanel, span.first + span.count);
        body(Lanes{panel, start - panel * kPanel, stop - start, start - span.first});
    });
}

template <class To>
To* panel_of(const Matrix& matrix, int64_t item, int64_t panel) {
    return reinterpret_cast<To*>(const_cast<uint8_t*>(matrix.panel(item, panel)));
}

// to[i * 32 + lane] = convert(lane, rows[lane][i]); `to` points at the first lane.
template <class From, class To, class Convert>
void transpose(const From* rows, int64_t inputs, int64_t lanes, To* to, const Convert& convert_one) {
    for (int64_t k = 0; k < inputs; k += kTogether) {
        const int64_t end = least(k + kTogether, inputs);
        for (int64_t lane = 0; lane < lanes; ++lane) {
            for (int64_t i = k; i < end; ++i) convert_one(lane, rows[lane * inputs + i], to + i * kPanel + lane);
        }
    }
}

template <class To, class From>
void pack_floats(const Matrix& matrix, const RowSpan& span, const From* rows) {
    for_each_panel(span, [&](const Lanes& at) {
        transpose(rows + at.from * matrix.inputs, matrix.inputs, at.count, panel_of<To>(matrix, span.item, at.panel) + at.lane,
                  [](int64_t, From x, To* out) { convert(x, out); });
    });
}

// The largest magnitude; infinite when a number isn't finite.
template <class From>
float largest(const From* row, int64_t count) {
    float most = 0;
    bool finite = true;
    for (int64_t i = 0; i < count; ++i) {
        const float magnitude = std::fabs(widen(row[i]));
        most = magnitude > most ? magnitude : most;
        finite &= magnitude <= FLT_MAX;
    }
    return finite ? most : INFINITY;
}

template <class From>
bool pack_int8(const Matrix& matrix, const RowSpan& span, const From* rows) {
    std::atomic<bool> finite{true};
    for_each_panel(span, [&](const Lanes& at) {
        const From* first = rows + at.from * matrix.inputs;
        float* scales = const_cast<float*>(matrix.scales) + (span.item * matrix.panels() + at.panel) * kPanel + at.lane;
        float divisors[kPanel];
        for (int64_t lane = 0; lane < at.count; ++lane) {
            const float most = largest(first + lane * matrix.inputs, matrix.inputs);
            if (most > FLT_MAX) finite = false;
            scales[lane] = most / 127.0f;
            divisors[lane] = scales[lane] > 0 ? scales[lane] : 1.0f;
        }
        if (!finite) return;
        transpose(first, matrix.inputs, at.count, panel_of<int8_t>(matrix, span.item, at.panel) + at.lane,
                  [&](int64_t lane, From x, int8_t* out) {
                      constexpr float kShifter = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
                      const float rounded = (widen(x) / divisors[lane] + kShifter) - kShifter;
                      *out = static_cast<int8_t>(rounded > 127 ? 127 : rounded < -127 ? -127 : rounded);
                  });
    });
    return finite;
}

// Where the byte with an output's codes of inputs 2 * pair and 2 * pair + 1 of the group lies.
uint8_t* pair_of_codes(uint8_t* group, int64_t lane, int64_t pair) {
    constexpr int64_t kHalf = kPanel / 2;
    return group + kPanel + (pair / 2 * kHalf + lane % kHalf) * 4 + lane / kHalf * 2 + pair % 2;
}

// The nearest of 0, .5, 1, 1.5, 2, 3, 4 and 6; halfway the even code.
int code_of(double scaled) {
    const double m = std::fabs(scaled);
    const int code = (m > 0.25) + (m >= 0.75) + (m > 1.25) + (m >= 1.75) + (m > 2.5) + (m >= 3.5) + (m > 5.0);
    return code | (std::signbit(scaled) ? 8 : 0);
}

// The power of two below the largest magnitude, by 4, as an E8M0 byte; of zeros 1.
int scale_of(float most) {
    if (most == 0) return 127;
    int exponent;
    std::frexp(most, &exponent);
    const int byte = exponent - 1 - 2 + 127;
    return byte < 0 ? 0 : byte > 254 ? 254 : byte;
}

template <class From>
bool pack_mxfp4(const Matrix& matrix, const RowSpan& span, const From* rows) {
    std::atomic<bool> finite{true};
    for_each_panel(span, [&](const Lanes& at) {
        uint8_t* group = panel_of<uint8_t>(matrix, span.item, at.panel);
        for (int64_t k = 0; k < matrix.inputs; k += kGroup, group += kGroupBytes) {
            for (int64_t row = 0; row < at.count; ++row) {
                const From* x = rows + (at.from + row) * matrix.inputs + k;
                const float most = largest(x, kGroup);
                if (most > FLT_MAX) finite = false;
                const int byte = scale_of(most > FLT_MAX ? 0 : most);
                const double factor = std::ldexp(1.0, 127 - byte);
                group[at.lane + row] = static_cast<uint8_t>(byte);
                for (int64_t i = 0; i < kGroup; i += 2) {
                    const int low = code_of(widen(x[i]) * factor), high = code_of(widen(x[i + 1]) * factor);
                    *pair_of_codes(group, at.lane + row, i / 2) = static_cast<uint8_t>(low | high << 4);
                }
            }
        }
    });
    return finite;
}

template <class From>
bool pack_typed(const Matrix& matrix, const RowSpan& span, const From* rows) {
    switch (matrix.format) {
        case Format::f32: pack_floats<float>(matrix, span, rows); return true;
        case Format::bf16: pack_floats<uint16_t>(matrix, span, rows); return true;
        case Format::int8: return pack_int8(matrix, span, rows);
        case Format::mxfp4: return pack_mxfp4(matrix, span, rows);
    }
    return false;
}

}  // namespace

bool pack_rows(const Matrix& matrix, const RowSpan& span, Float type, const void* rows) {
    if (type == Float::f32) return pack_typed(matrix, span, static_cast<const float*>(rows));
    return pack_typed(matrix, span, static_cast<const uint16_t*>(rows));
}

void pack_codes(const Matrix& matrix, const RowSpan& span, const uint8_t* codes) {
    for_each_panel(span, [&](const Lanes& at) {
        uint8_t* group = panel_of<uint8_t>(matrix, span.item, at.panel);
        for (int64_t g = 0; g < matrix.inputs / kGroup; ++g, group += kGroupBytes) {
            for (int64_t row = 0; row < at.count; ++row) {
                const uint8_t* bytes = codes + (at.from + row) * matrix.inputs / 2 + g * kGroup / 2;
                for (int64_t pair = 0; pair < kGroup / 2; ++pair) *pair_of_codes(group, at.lane + row, pair) = bytes[pair];
            }
        }
    });
}

void pack_scales(const Matrix& matrix, const RowSpan& span, const uint8_t* scales) {
    const int64_t groups = matrix.inputs / kGroup;
    for_each_panel(span, [&](const Lanes& at) {
        uint8_t* group = panel_of<uint8_t>(matrix, span.item, at.panel);
        for (int64_t g = 0; g < groups; ++g, group += kGroupBytes) {
            for (int64_t row = 0; row < at.count; ++row) group[at.lane + row] = scales[(at.from + row) * groups + g];
        }
    });
}

}  // namespace milepost
