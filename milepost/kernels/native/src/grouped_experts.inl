#pragma once

#include "grouped_experts.h"
#include "panels.inl"
#include "simd.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

constexpr int64_t kExpertRows = 120;  // tokens in one product: what their sums need stays in the first cache

// Choices by expert: a counting sort. Choices that name no expert are left out; returns whether there are any.
static bool sort_choices(const GroupedExpertsArgs& args) {
    const auto experts = static_cast<uint64_t>(args.w1->batch);
    int64_t* ends = args.ends;
    bool lost = false;
    std::memset(ends, 0, experts * sizeof *ends);
    for (int64_t c = 0; c < args.choices(); ++c) {
        if (static_cast<uint64_t>(args.ids[c]) < experts) {
            ++ends[args.ids[c]];
        } else {
            lost = true;
        }
    }
    int64_t begin = 0;
    for (uint64_t e = 0; e < experts; ++e) {
        const int64_t count = ends[e];
        ends[e] = begin;  // moves to the end as choices come in
        begin += count;
    }
    for (int64_t c = 0; c < args.choices(); ++c) {
        if (static_cast<uint64_t>(args.ids[c]) < experts) args.order[ends[args.ids[c]]++] = c;
    }
    return lost;
}

static inline int64_t first_choice(const GroupedExpertsArgs& args, int64_t expert) {
    return expert == 0 ? 0 : args.ends[expert - 1];
}

static int64_t list_touched(const GroupedExpertsArgs& args) {
    int64_t count = 0;
    for (int64_t e = 0; e < args.w1->batch; ++e) {
        if (args.ends[e] > first_choice(args, e)) args.touched[count++] = e;
    }
    return count;
}

// One panel of an expert's hidden channels for some of its choices, places begin .. end in `order`.
static void hidden_panel(const GroupedExpertsArgs& args, int64_t expert, int64_t panel, int64_t begin, int64_t end) {
    const int64_t rows = end - begin, left = args.w1->outputs - panel * kPanel;
    if (rows <= 0) return;
    alignas(64) float gates[kExpertRows][kPanel], ups[kExpertRows][kPanel];
    const float* x[kExpertRows];
    float *gate[kExpertRows], *up[kExpertRows];
    const int64_t outputs = left < kPanel ? left : kPanel;
    for (int64_t r = 0; r < rows; ++r) {
        x[r] = args.x + args.order[begin + r] / args.top_k * args.x_stride;
        gate[r] = gates[r];
        up[r] = ups[r];
    }
    panel_product(*args.w1, expert, panel, x, gate, rows, false);
    panel_product(*args.w3, expert, panel, x, up, rows, false);
    for (int64_t r = 0; r < rows; ++r) {
        float* hidden = args.hidden + (begin + r) * args.hidden_stride() + panel * kPanel;
        activate_row(gate[r], up[r], hidden, outputs, args.activation);
        const float weight = args.weights[args.order[begin + r]];
        for (int64_t o = 0; o < outputs; ++o) hidden[o] *= weight;
    }
}

// The first place in `order`, from begin to end, whose token is not below `token`; an expert's choices are by token.
static int64_t place_of_token(const GroupedExpertsArgs& args, int64_t begin, int64_t end, int64_t token) {
    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (args.order[middle] < token * args.top_k) {
            begin = middle + 1;
        } else {
            end = middle;
        }
    }
    return begin;
}

// One panel of the outputs of tokens first .. last: whoever computes it adds up all experts, in ascending order.
static void output_panel(const GroupedExpertsArgs& args, int64_t touched, int64_t panel, int64_t first, int64_t last) {
    const float* x[kExpertRows];
    float* y[kExpertRows];
    const int64_t left = args.w2->outputs - panel * kPanel;
    const size_t bytes = static_cast<size_t>(left < kPanel ? left : kPanel) * sizeof(float);
    for (int64_t t = first; t < last; ++t) std::memset(args.out + t * args.out_stride + panel * kPanel, 0, bytes);
    for (int64_t i = 0; i < touched; ++i) {
        const int64_t expert = args.touched[i];
        int64_t at = place_of_token(args, first_choice(args, expert), args.ends[expert], first);
        const int64_t end = place_of_token(args, at, args.ends[expert], last);
        while (at < end) {
            const int64_t rows = end - at < kExpertRows ? end - at : kExpertRows;
            for (int64_t r = 0; r < rows; ++r) {
                x[r] = args.hidden + (at + r) * args.hidden_stride();
                y[r] = args.out + args.order[at + r] / args.top_k * args.out_stride + panel * kPanel;
            }
            panel_product(*args.w2, expert, panel, x, y, rows, true);
            at += rows;
        }
    }
}

// Chunks are small enough that experts with many tokens and those with few balance, and large enough that a claim costs
// little beside them.
template <class Body>
static void for_each_item(int64_t items, int64_t work, Body&& body) {
    constexpr int64_t kChunkWork = 1 << 18;  // multiplications
    constexpr int64_t kLeastWork = 1 << 15;
    const int64_t even = (items + 4 * num_threads() - 1) / (4 * num_threads());
    const int64_t fit = kChunkWork / (work + 1) + 1;
    const int64_t grain = items * work < kLeastWork ? items : fit < even ? fit : even;
    auto call = [](void* context, int64_t begin, int64_t end) {
        for (int64_t at = begin; at < end; ++at) (*static_cast<std::remove_reference_t<Body>*>(context))(at);
    };
    run_chunks(items, grain, call, &body);
}

// A token that names an expert that isn't there fails, alone and visibly.
static void spoil_lost_tokens(const GroupedExpertsArgs& args) {
    for (int64_t c = 0; c < args.choices(); ++c) {
        if (static_cast<uint64_t>(args.ids[c]) < static_cast<uint64_t>(args.w1->batch)) continue;
        float* out = args.out + c / args.top_k * args.out_stride;
        for (int64_t o = 0; o < args.w2->outputs; ++o) out[o] = NAN;
    }
}

static void grouped_experts(const GroupedExpertsArgs& args) {
    constexpr int64_t kTokensOfSplit = 64;
    const bool lost = sort_choices(args);
    const int64_t touched = list_touched(args);
    const int64_t hidden_panels = args.w1->panels(), panels = args.w2->panels();
    const int64_t items = touched * hidden_panels;
    for_each_item(items, 2 * args.choices() * args.w1->inputs * kPanel / (touched + 1), [&](int64_t at) {
        const int64_t expert = args.touched[at / hidden_panels];
        const int64_t end = args.ends[expert];
        for (int64_t first = first_choice(args, expert); first < end; first += kExpertRows) {
            hidden_panel(args, expert, at % hidden_panels, first, first + kExpertRows < end ? first + kExpertRows : end);
        }
    });
    // Few panels and many tokens: tokens are split too, so that all threads have work.
    const int64_t wanted = (4 * num_threads() + panels - 1) / panels, most = args.tokens / kTokensOfSplit;
    const int64_t splits = most < 1 ? 1 : wanted < most ? wanted : most;
    for_each_item(panels * splits, args.choices() * args.w2->inputs * kPanel / splits, [&](int64_t at) {
        const int64_t split = at / panels;
        output_panel(args, touched, at % panels, args.tokens * split / splits, args.tokens * (split + 1) / splits);
    });
    if (lost) spoil_lost_tokens(args);
}

}  // namespace milepost::MILEPOST_TARGET
