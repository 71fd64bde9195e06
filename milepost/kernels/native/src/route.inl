#pragma once

#include "panels.inl"
#include "route.h"
#include "simd.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

// Sigmoids of the scores of up to kRouteRows tokens for one panel of experts.
constexpr int64_t kRouteRows = 48;

static void score_panel(const RouteArgs& args, int64_t panel, int64_t first, int64_t rows) {
    if (rows <= 0) return;
    alignas(64) float logits[kRouteRows][kPanel] = {};
    const float* x[kRouteRows];
    float* y[kRouteRows];
    for (int64_t r = 0; r < rows; ++r) {
        x[r] = args.x + (first + r) * args.x_stride;
        y[r] = logits[r];
    }
    panel_product(*args.gate, 0, panel, x, y, rows, false);
    const int64_t experts = args.gate->outputs, left = experts - panel * kPanel;
    const size_t bytes = static_cast<size_t>(left < kPanel ? left : kPanel) * sizeof(float);
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < kPanel; o += kWidth) store(logits[r] + o, sigmoid(load(logits[r] + o)));
        std::memcpy(args.scores + (first + r) * experts + panel * kPanel, logits[r], bytes);
    }
}

// Whether a score goes before another one; NaN goes first, so that the choice is well defined for any numbers.
static inline bool goes_before(float a, float b) { return a > b || (a != a && b == b); }

// The top_k best of one token by insertion: an expert only passes those that it beats, so of equals the lower id is
// first. Almost all experts end at the comparison with the last place.
static void choose(const RouteArgs& args, int64_t token) {
    const float* scores = args.scores + token * args.gate->outputs;
    int64_t* ids = args.ids + token * args.top_k;
    float* weights = args.weights + token * args.top_k;
    float* biased = weights;  // until the choice is made
    int64_t chosen = 0;
    for (int64_t e = 0; e < args.gate->outputs; ++e) {
        const float score = scores[e] + args.bias[e];
        if (chosen == args.top_k && !goes_before(score, biased[chosen - 1])) continue;
        int64_t place = chosen < args.top_k ? chosen++ : chosen - 1;
        for (; place > 0 && goes_before(score, biased[place - 1]); --place) {
            biased[place] = biased[place - 1];
            ids[place] = ids[place - 1];
        }
        biased[place] = score;
        ids[place] = e;
    }
    float total = 0;
    for (int64_t i = 0; i < args.top_k; ++i) total += weights[i] = scores[ids[i]];
    const float divisor = args.renormalize ? total + 1e-20f : 1.0f;
    for (int64_t i = 0; i < args.top_k; ++i) weights[i] = weights[i] / divisor * args.scaling;
}

static void route(const RouteArgs& args) {
    constexpr int64_t kLeastWork = 1 << 15;  // multiplications that pay for a thread
    constexpr int64_t kLeastScores = 1 << 12;
    const Matrix& gate = *args.gate;
    const int64_t panels = gate.panels(), blocks = (args.tokens + kRouteRows - 1) / kRouteRows;
    const int64_t rows_at_once = args.tokens < kRouteRows ? args.tokens : kRouteRows;
    const int64_t work = rows_at_once * gate.inputs * kPanel;
    parallel_for(panels * blocks, kLeastWork / (work + 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at) {
            const int64_t first = at % blocks * kRouteRows, left = args.tokens - first;
            score_panel(args, at / blocks, first, left < kRouteRows ? left : kRouteRows);
        }
    });
    parallel_for(args.tokens, kLeastScores / gate.outputs + 1, [&](int64_t begin, int64_t end) {
        for (int64_t token = begin; token < end; ++token) choose(args, token);
    });
}

}  // namespace milepost::MILEPOST_TARGET
