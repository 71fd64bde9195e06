#pragma once

#include "gated_activation.inl"
#include "grouped_experts.h"
#include "items.inl"
#include "panels.inl"

namespace milepost::MILEPOST_TARGET {

static_assert(kBlockRows >= kLeastBlockRows);

static inline bool exists(const GroupedExpertsArgs& args, int64_t expert) {
    return static_cast<uint64_t>(expert) < static_cast<uint64_t>(args.w1->batch);
}

static inline int64_t token_of(const GroupedExpertsArgs& args, int64_t place) { return args.order[place] / args.top_k; }

static inline int64_t expert_at(const GroupedExpertsArgs& args, int64_t place) { return args.ids[args.order[place]]; }

// Choices by expert: a counting sort. Choices that name no expert are left out; returns how many were not.
static int64_t sort_choices(const GroupedExpertsArgs& args) {
    int64_t* ends = args.ends;
    std::memset(ends, 0, static_cast<size_t>(args.w1->batch) * sizeof *ends);
    for (int64_t c = 0; c < args.choices(); ++c) {
        if (exists(args, args.ids[c])) ++ends[args.ids[c]];
    }
    int64_t begin = 0;
    for (int64_t e = 0; e < args.w1->batch; ++e) {
        const int64_t count = ends[e];
        ends[e] = begin;  // moves to the end as choices come in
        begin += count;
    }
    for (int64_t c = 0; c < args.choices(); ++c) {
        if (exists(args, args.ids[c])) args.order[ends[args.ids[c]]++] = c;
    }
    return begin;
}

// Each touched expert's choices in blocks of about equal size that one product takes; returns how many blocks.
static int64_t cut_blocks(const GroupedExpertsArgs& args) {
    int64_t blocks = 0, begin = 0;
    for (int64_t e = 0; e < args.w1->batch; ++e) {
        const int64_t rows = args.ends[e] - begin, parts = pieces(rows, kBlockRows);
        for (int64_t part = 0; part < parts; ++part) args.blocks[blocks++] = begin + rows * part / parts;
        begin = args.ends[e];
    }
    return blocks;
}

// `count` panels of an expert's hidden channels for a block of its choices, places begin .. end in `order`.
static void hidden_block(const GroupedExpertsArgs& args, int64_t begin, int64_t end, int64_t panel, int64_t count) {
    const int64_t rows = end - begin, expert = expert_at(args, begin);
    if (rows <= 0) return;
    alignas(64) float ups[kBlockRows][kMostPanels * kPanel];
    const float* x[kBlockRows];
    float *gate[kBlockRows], *up[kBlockRows];
    for (int64_t r = 0; r < rows; ++r) {
        x[r] = args.x + token_of(args, begin + r) * args.x_stride;
        gate[r] = args.hidden + (begin + r) * args.hidden_stride() + panel * kPanel;  // until it is activated
        up[r] = ups[r];
    }
    panels_product(*args.w1, expert, panel, count, x, gate, rows, false);
    panels_product(*args.w3, expert, panel, count, x, up, rows, false);
    const int64_t outputs = least(count * kPanel, args.w1->outputs - panel * kPanel);
    for (int64_t r = 0; r < rows; ++r) {
        activate_row(gate[r], up[r], gate[r], outputs, args.activation);
        const float weight = args.weights[args.order[begin + r]];
        for (int64_t o = 0; o < outputs; ++o) gate[r][o] *= weight;
    }
}

// The first place in `order`, from begin to end, whose token is not below `token`; an expert's choices are by token.
static int64_t place_of_token(const GroupedExpertsArgs& args, int64_t begin, int64_t end, int64_t token) {
    while (begin < end) {
        const int64_t middle = begin + (end - begin) / 2;
        if (token_of(args, middle) < token) begin = middle + 1;
        else end = middle;
    }
    return begin;
}

// `count` panels of the outputs of tokens first .. last. Whoever computes them adds up all experts, in ascending order.
static void output_block(const GroupedExpertsArgs& args, int64_t first, int64_t last, int64_t panel, int64_t count) {
    const float* x[kBlockRows];
    float* y[kBlockRows];
    const int64_t outputs = least(count * kPanel, args.w2->outputs - panel * kPanel);
    float* const out = args.out + panel * kPanel;
    for (int64_t t = first; t < last; ++t) std::memset(out + t * args.out_stride, 0, outputs * sizeof(float));
    int64_t begin = 0;
    for (int64_t expert = 0; expert < args.w2->batch; begin = args.ends[expert++]) {
        if (begin == args.ends[expert]) continue;
        int64_t at = place_of_token(args, begin, args.ends[expert], first);
        const int64_t end = place_of_token(args, at, args.ends[expert], last);
        while (at < end) {
            const int64_t rows = least(end - at, kBlockRows);
            for (int64_t r = 0; r < rows; ++r) {
                x[r] = args.hidden + (at + r) * args.hidden_stride();
                y[r] = out + token_of(args, at + r) * args.out_stride;
            }
            panels_product(*args.w2, expert, panel, count, x, y, rows, true);
            at += rows;
        }
    }
}

// How outputs are cut into items: by panels, and by tokens where an expert has many, or panels alone are too few.
struct OutputCut {
    int64_t splits;
    int64_t count;

    OutputCut(const GroupedExpertsArgs& args, int64_t blocks, int64_t panels) : splits(1), count(kMostPanels) {
        while (items(panels) < 4 * num_threads()) {
            if (args.choices() / (blocks * splits) >= kBlockRows / 2) splits *= 2;
            else if (count > 1) count /= 2;
            else if (args.tokens / splits >= 2 * kFewRows) splits *= 2;
            else break;
        }
    }

    int64_t items(int64_t panels) const { return splits * pieces(panels, count); }
};

// A token that names an expert that isn't there fails, alone and visibly.
static void spoil_lost_tokens(const GroupedExpertsArgs& args) {
    for (int64_t c = 0; c < args.choices(); ++c) {
        if (exists(args, args.ids[c])) continue;
        float* out = args.out + c / args.top_k * args.out_stride;
        for (int64_t o = 0; o < args.w2->outputs; ++o) out[o] = NAN;
    }
}

static void all_hidden(const GroupedExpertsArgs& args, int64_t blocks, int64_t placed) {
    const int64_t panels = args.w1->panels(), count = panels_of_item(blocks, panels);
    const int64_t groups = pieces(panels, count), items = blocks * groups;
    const int64_t work = 2 * placed * args.w1->inputs * panels * kPanel / (items + 1);
    for_each_item(items, work, [&](int64_t at) {
        const int64_t block = at / groups, panel = at % groups * count;
        const int64_t end = block + 1 < blocks ? args.blocks[block + 1] : placed;
        hidden_block(args, args.blocks[block], end, panel, least(count, panels - panel));
    });
}

static void all_outputs(const GroupedExpertsArgs& args, int64_t blocks, int64_t placed) {
    const int64_t panels = args.w2->panels();
    const OutputCut cut(args, blocks + 1, panels);
    const int64_t items = cut.items(panels), groups = items / cut.splits;
    const int64_t work = placed * args.w2->inputs * panels * kPanel / items;
    for_each_item(items, work, [&](int64_t at) {
        const int64_t split = at / groups, panel = at % groups * cut.count;
        output_block(args, args.tokens * split / cut.splits, args.tokens * (split + 1) / cut.splits, panel,
                     least(cut.count, panels - panel));
    });
}

static void grouped_experts(const GroupedExpertsArgs& args) {
    const int64_t placed = sort_choices(args), blocks = cut_blocks(args);
    all_hidden(args, blocks, placed);
    all_outputs(args, blocks, placed);
    if (placed < args.choices()) spoil_lost_tokens(args);
}

}  // namespace milepost::MILEPOST_TARGET
