// Short rows: k_b goes into the queries and v_b comes out of the results, so all heads see rows as they are cached.
//
// A context is cut into parts that threads take one by one; their softmaxes are put together in order. Where the cuts
// lie is decided by the row's own length and position, so a token's result doesn't depend on threads or other rows.
#include "linear.inl"
#include "mla_part.inl"

namespace milepost::MILEPOST_TARGET::mla {

constexpr int64_t kLeastPart = 128;  // cached rows that pay for a part
constexpr int64_t kMostGroups = 256;  // at a time

// Up to kQueryLanes of a row's (token, head) pairs.
struct Group {
    int64_t row;
    int64_t first;      // pair, counted from the pass's first token
    int64_t count;
    int64_t position;   // of the token of the first pair
    int64_t last;       // position of the token of the last pair
    int64_t parts;
    int64_t part_keys;  // cached rows of a part
    int64_t first_part;  // its place in the scratch
    bool small_blocks;   // decided by all pairs of the row
};

// Tokens begin .. end - 1 of the step, all of short rows.
class AbsorbedPass {
public:
    AbsorbedPass(const MlaAttentionArgs& args, int64_t begin, int64_t end)
        : args_(args),
          dims_(args),
          begin_(begin),
          end_(end),
          stride_(rounded_up(dims_.lora, kPadding)),
          part_floats_(kQueryLanes * (stride_ + 2)) {}

    void run(int64_t first_row) {
        const int64_t tokens = end_ - begin_, wide = dims_.heads * dims_.lora;
        linear(LinearArgs{args_.k_b, args_.q + begin_ * args_.q_stride, args_.q_stride, dims_.qk(), args_.latent, wide,
                          dims_.lora, tokens, false});
        for (int64_t row = first_row; row < args_.rows->num_rows && args_.rows->cu_seqlens[row] < end_; ++row) {
            add_row(row);
        }
        attend();
        float* out = args_.out + begin_ * dims_.heads * dims_.v;
        linear(LinearArgs{args_.v_b, args_.mixed, wide, dims_.lora, out, dims_.heads * dims_.v, dims_.v, tokens, false});
        if (args_.gate != nullptr) apply_gate(out);
    }

private:
    void add_row(int64_t row) {
        const int64_t* tokens = args_.rows->cu_seqlens;
        const int64_t first = most(tokens[row], begin_), last = least(tokens[row + 1], end_);
        const int64_t context = args_.rows->starts[row] + tokens[row + 1] - tokens[row];
        const int64_t row_pairs = (tokens[row + 1] - tokens[row]) * dims_.heads;
        const int64_t row_groups = rounded_up(row_pairs, kQueryLanes) / kQueryLanes;
        const int64_t parts = least((context + kLeastPart - 1) / kLeastPart, most(1, kMostParts / row_groups));
        const int64_t part_keys = rounded_up((context + parts - 1) / parts, kKeys);
        const int64_t before = args_.rows->starts[row] - (tokens[row] - begin_);  // position of token 0 of the pass
        const int64_t pairs = (last - begin_) * dims_.heads;
        for (int64_t pair = (first - begin_) * dims_.heads; pair < pairs; pair += kQueryLanes) {
            const int64_t count = least(kQueryLanes, pairs - pair);
            if (num_groups_ == kMostGroups || num_parts_ + parts > args_.num_parts) attend();
            const int64_t position = before + pair / dims_.heads, last_position = before + (pair + count - 1) / dims_.heads;
            groups_[num_groups_++] = Group{row, pair, count, position, last_position,
                                           parts, part_keys, num_parts_, in_small_blocks(row_pairs)};
            num_parts_ += parts;
        }
    }

    // Does the groups that have come together.
    void attend() {
        parallel_for(num_parts_, 1, [&](int64_t begin, int64_t end) {
            int64_t g = 0;
            for (int64_t part = begin; part < end; ++part) {
                while (part >= groups_[g].first_part + groups_[g].parts) ++g;
                attend_part(groups_[g], part - groups_[g].first_part);
            }
        });
        parallel_for(num_groups_, 8, [&](int64_t begin, int64_t end) {
            for (int64_t g = begin; g < end; ++g) put_together(groups_[g]);
        });
        num_groups_ = num_parts_ = 0;
    }

    float* part_of(const Group& group, int64_t part) const {
        return args_.parts + (group.first_part + part) * part_floats_;
    }

    // A part's memory: sums [kQueryLanes, stride_], then the softmax's numbers.
    Softmax softmax_of(float* part) const {
        return Softmax{part + kQueryLanes * stride_, part + kQueryLanes * (stride_ + 1)};
    }

    void attend_part(const Group& group, int64_t index) const {
        float* sums = part_of(group, index);
        const Softmax softmax = softmax_of(sums);
        const int64_t begin = index * group.part_keys, end = least(begin + group.part_keys, group.last + 1);
        if (begin >= end) {
            for (int64_t i = 0; i < kQueryLanes; ++i) softmax.top[i] = kHidden, softmax.total[i] = 0;
            return;
        }
        const CachedRows cached(*args_.kv, group.row, args_.layer, dims_.lora);
        Query queries[kQueryLanes];
        for (int64_t i = 0; i < group.count; ++i) queries[i] = query_of(group, i);
        if (group.small_blocks) {
            Part<kLeastPairs>(dims_, cached, queries, group.count).run(begin, end, sums, stride_, softmax);
        } else {
            Part<kMostPairs>(dims_, cached, queries, group.count).run(begin, end, sums, stride_, softmax);
        }
    }

    Query query_of(const Group& group, int64_t i) const {
        const int64_t pair = group.first + i, token = pair / dims_.heads;
        return Query{args_.latent + pair * dims_.lora,
                     args_.q + (begin_ + token) * args_.q_stride + pair % dims_.heads * dims_.qk() + dims_.nope,
                     group.position + token - group.first / dims_.heads};
    }

    // The weighted means over all parts of the context of a group's queries.
    void put_together(const Group& group) const {
        for (int64_t i = 0; i < group.count; ++i) {
            const float* sums[kMostParts];
            float weights[kMostParts];
            const int64_t parts = weigh_parts(group, i, sums, weights);
            float* mixed = args_.mixed + (group.first + i) * dims_.lora;
            for (int64_t l = 0; l < dims_.lora; l += kWidth) {
                VecF mean = {};
                for (int64_t p = 0; p < parts; ++p) mean += load(sums[p] + l) * weights[p];
                store_first(mixed + l, mean, dims_.lora - l);
            }
        }
    }

    // What the sums of each part that query i saw count for in its mean; returns the number of those parts.
    int64_t weigh_parts(const Group& group, int64_t i, const float** sums, float* weights) const {
        int64_t parts = 0;
        float top = kHidden, total = 0, totals[kMostParts];
        for (int64_t p = 0; p < group.parts; ++p) {
            float* part = part_of(group, p);
            const Softmax softmax = softmax_of(part);
            if (softmax.total[i] == 0) continue;  // an empty part: its sums were never written
            sums[parts] = part + i * stride_;
            totals[parts] = softmax.total[i];
            weights[parts] = softmax.top[i];
            if (top < softmax.top[i]) top = softmax.top[i];
            ++parts;
        }
        for (int64_t p = 0; p < parts; ++p) {
            weights[p] = exp2_of_negative(splat(weights[p] - top))[0];
            total += totals[p] * weights[p];
        }
        for (int64_t p = 0; p < parts; ++p) weights[p] /= total;
        return parts;
    }

    void apply_gate(float* out) const {
        const int64_t wide = dims_.heads * dims_.v;
        parallel_for(end_ - begin_, (1 << 14) / wide + 1, [&](int64_t begin, int64_t end) {
            for (int64_t t = begin; t < end; ++t) {
                finish(out + t * wide, 1.0f, args_.gate + (begin_ + t) * args_.gate_stride, out + t * wide, wide);
            }
        });
    }

    const MlaAttentionArgs& args_;
    const Dims dims_;
    const int64_t begin_, end_, stride_, part_floats_;
    int64_t num_groups_ = 0, num_parts_ = 0;
    Group groups_[kMostGroups];
};

}  // namespace milepost::MILEPOST_TARGET::mla
