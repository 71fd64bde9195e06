#pragma once

#include "items.inl"
#include "panels.inl"
#include "route.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

constexpr int64_t kRouteRows = 48;  // of an item: enough of them share what reading the weights costs

// The scores of a block of tokens for `count` panels of experts.
static void score_block(const RouteArgs& args, int64_t first, int64_t rows, int64_t panel, int64_t count) {
    if (rows <= 0) return;
    const float* x[kRouteRows];
    float* y[kRouteRows];
    for (int64_t r = 0; r < rows; ++r) {
        x[r] = args.x + (first + r) * args.x_stride;
        y[r] = args.scores + (first + r) * args.score_stride() + panel * kPanel;
    }
    panels_product(*args.gate, 0, panel, count, x, y, rows, false);
    // The last panel's outputs that no expert has are computed along and never read.
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t o = 0; o < count * kPanel; o += kWidth) store(y[r] + o, sigmoid(load(y[r] + o)));
    }
}

// Whether a score goes before another one; NaN goes first, so that the choice is well defined for any numbers.
static inline bool goes_before(float a, float b) { return a > b || (a != a && b == b); }

// The top_k best of one token by insertion: an expert only passes those that it beats, so of equals the lower id is
// first. Almost all experts end at the comparison with the last place.
static void choose(const RouteArgs& args, int64_t token) {
    const float* scores = args.scores + token * args.score_stride();
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
    constexpr int64_t kLeastScores = 1 << 12;
    const Matrix& gate = *args.gate;
    const int64_t blocks = pieces(args.tokens, kRouteRows);
    const int64_t panels = gate.panels(), count = panels_of_item(blocks, panels), groups = pieces(panels, count);
    const int64_t items = blocks * groups;
    const int64_t work = args.tokens * gate.inputs * panels * kPanel / (items + 1);
    for_each_item(items, work, [&](int64_t at) {
        const int64_t first = at / groups * kRouteRows, panel = at % groups * count;
        score_block(args, first, least(kRouteRows, args.tokens - first), panel, least(count, panels - panel));
    });
    for_each(args.tokens, kLeastScores / gate.outputs + 1, [&](int64_t token) { choose(args, token); });
}

}  // namespace milepost::MILEPOST_TARGET
