// Long rows: each tile of cached rows is expanded to a head's keys and values, which all of the row's queries then see.
#include "mla_tiles.inl"

namespace milepost::MILEPOST_TARGET::mla {

constexpr int64_t kMostQueries = 4096;  // of a head that see an expanded tile before it is given up
constexpr int64_t kLeastQueries = 256;

// A head's k_b [lora, nope] as columns of k_nope: [nope / 32, lora, 32], zeros beyond the last.
template <class Number>
static void turn_k_b(const Matrix& matrix, int64_t head, float* turned) {
    const int64_t lora = matrix.outputs, nope = matrix.inputs;
    for (int64_t i = 0; i < rounded_up(nope, kPanel) * lora; ++i) turned[i] = 0;
    for (int64_t p = 0; p < matrix.panels(); ++p) {
        const Number* panel = reinterpret_cast<const Number*>(matrix.panel(head, p));
        const int64_t outputs = least(kPanel, lora - p * kPanel);
        for (int64_t n = 0; n < nope; ++n) {
            float* column = turned + (n / kPanel * lora + p * kPanel) * kPanel + n % kPanel;
            for (int64_t l = 0; l < outputs; ++l) column[l * kPanel] = widen(panel[n * kPanel + l]);
        }
    }
}

// A head's v_b [v, lora] as it lies, or widened: [v / 32, lora, 32].
static const float* read_v_b(const Matrix& matrix, int64_t head, float* widened) {
    const uint8_t* panels = matrix.panel(head, 0);
    if (matrix.format == Format::f32) return reinterpret_cast<const float*>(panels);
    const int64_t size = matrix.panels() * kPanel * matrix.inputs;
    for (int64_t i = 0; i < size; i += kWidth) store(widened + i, load(reinterpret_cast<const uint16_t*>(panels) + i));
    return widened;
}

// Some queries of one row and head, walking over the row's keys.
class ExpandedItem {
public:
    ExpandedItem(const MlaAttentionArgs& args, int64_t row, int64_t head, int64_t begin, int64_t end)
        : args_(args),
          dims_(args),
          cached_(*args.kv, row, args.layer, dims_.lora),
          head_(head),
          token_(args.rows->cu_seqlens[row] + begin),
          position_(args.rows->starts[row] + begin),
          queries_(end - begin),
          key_stride_(rounded_up(most(rounded_up(dims_.nope, kPadding), dims_.qk()), kPadding)),
          value_stride_(rounded_up(dims_.v, kPadding)) {}

    void run() {
        take_memory();
        if (args_.k_b->format == Format::f32) {
            turn_k_b<float>(*args_.k_b, head_, k_b_);
        } else {
            turn_k_b<uint16_t>(*args_.k_b, head_, k_b_);
        }
        const float* v_b = read_v_b(*args_.v_b, head_, v_b_);
        turn_queries();
        const int64_t end = position_ + queries_;
        for (int64_t key = 0; key < end; key += kKeys) {
            const int64_t count = least(kKeys, end - key);
            expand(key, count, v_b);
            const int64_t first = most(0, key - position_) / kQueryLanes * kQueryLanes;
            for (int64_t query = first; query < queries_; query += kQueryLanes) attend(query, key, count);
        }
        write();
    }

private:
    void take_memory() {
        const int64_t lanes = rounded_up(queries_, kQueryLanes);
        const int64_t sizes[] = {rounded_up(dims_.nope, kPanel) * dims_.lora,
                                 args_.v_b->panels() * kPanel * dims_.lora,
                                 lanes * dims_.qk(),
                                 lanes * value_stride_,
                                 2 * lanes,
                                 kKeys * cached_.stride(),
                                 kKeys * key_stride_,
                                 kKeys * value_stride_,
                                 kKeys * kQueryLanes,
                                 kQueryLanes};
        float** const pieces[] = {&k_b_, &v_b_, &turned_, &sums_, &stats_, &copies_, &keys_, &values_, &scores_, &shrink_};
        int64_t total = 0;
        for (int64_t size : sizes) total += rounded_up(size, kPadding);
        Pieces memory{scratch(total)};
        for (int i = 0; i < 10; ++i) *pieces[i] = memory.take(sizes[i]);
        for (int64_t t = 0; t < kKeys; ++t) {
            key_rows_[t] = keys_ + t * key_stride_;
            value_rows_[t] = values_ + t * value_stride_;
        }
    }

    // Scaled queries as panels of kQueryLanes columns, [queries / 32, nope + rope, 32].
    void turn_queries() {
        const float scale = dims_.scale();
        const int64_t depth = dims_.qk();
        for (int64_t i = 0; i < rounded_up(queries_, kQueryLanes); ++i) {
            float* column = turned_ + i / kQueryLanes * depth * kQueryLanes + i % kQueryLanes;
            const float* q = args_.q + (token_ + i) * args_.q_stride + head_ * depth;
            for (int64_t d = 0; d < depth; ++d) column[d * kQueryLanes] = i < queries_ ? q[d] * scale : 0.0f;
        }
    }

    void expand(int64_t key, int64_t count, const float* v_b) {
        const char* places[kKeys];
        const float* rows[kKeys];
        cached_.find(key, count, places);
        cached_.take(places, count, kKeys, copies_, rows);
        product(rows, count, dims_.lora, k_b_, rounded_up(dims_.nope, kWidth), keys_, key_stride_);
        for (int64_t t = 0; t < kKeys; ++t) {
            for (int64_t r = 0; r < dims_.rope; ++r) keys_[t * key_stride_ + dims_.nope + r] = rows[t][dims_.lora + r];
        }
        product(rows, count, dims_.lora, v_b, rounded_up(dims_.v, kWidth), values_, value_stride_);
    }

    // kQueryLanes queries from `query` on meet the expanded keys.
    void attend(int64_t query, int64_t key, int64_t count) {
        const int64_t here = least(kQueryLanes, queries_ - query), lanes = rounded_up(here, kWidth);
        const int64_t first_position = position_ + query;
        const int64_t seen = least(count, first_position + here - key);
        product(key_rows_, seen, dims_.qk(), turned_ + query * dims_.qk(), lanes, scores_, kQueryLanes);
        if (key + seen - 1 > first_position) {
            int32_t last_key[kQueryLanes];
            for (int64_t i = 0; i < kQueryLanes; ++i) last_key[i] = static_cast<int32_t>(first_position + i - key);
            hide(scores_, seen, lanes, last_key);
        }
        const Softmax softmax{stats_ + 2 * query, stats_ + 2 * query + kQueryLanes};
        softmax.add(scores_, seen, lanes, key == 0, shrink_);
        mix(scores_, here, value_rows_, seen, rounded_up(dims_.v, kWidth), key == 0, shrink_,
            sums_ + query * value_stride_, value_stride_);
    }

    void write() {
        for (int64_t i = 0; i < queries_; ++i) {
            const int64_t group = i / kQueryLanes * kQueryLanes, lane = i % kQueryLanes;
            const int64_t at = head_ * dims_.v;
            const float* gate = args_.gate == nullptr ? nullptr : args_.gate + (token_ + i) * args_.gate_stride + at;
            const float total = stats_[2 * group + kQueryLanes + lane];
            finish(sums_ + i * value_stride_, 1.0f / total, gate, args_.out + (token_ + i) * dims_.heads * dims_.v + at,
                   dims_.v);
        }
    }

    const MlaAttentionArgs& args_;
    const Dims dims_;
    const CachedRows cached_;
    const int64_t head_, token_, position_, queries_;
    const int64_t key_stride_, value_stride_;
    float *k_b_, *v_b_, *turned_, *sums_, *stats_, *copies_, *keys_, *values_, *scores_, *shrink_;
    const float* key_rows_[kKeys];
    const float* value_rows_[kKeys];
};

static void attend_expanded(const MlaAttentionArgs& args, int64_t row) {
    const int64_t heads = args.k_b->batch;
    const int64_t queries = args.rows->cu_seqlens[row + 1] - args.rows->cu_seqlens[row];
    // As few blocks of queries as keep the threads busy: each expands the keys again.
    int64_t blocks = rounded_up(queries, kMostQueries) / kMostQueries;
    while (heads * blocks < 2 * num_threads() && queries / (blocks + 1) >= kLeastQueries) ++blocks;
    const int64_t size = rounded_up((queries + blocks - 1) / blocks, kQueryLanes);
    parallel_for(heads * blocks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
            const int64_t first = (blocks - 1 - item / heads) * size;  // those with the most keys first
            const int64_t last = least(first + size, queries);
            if (first < last) ExpandedItem(args, row, item % heads, first, last).run();
        }
    });
}

}  // namespace milepost::MILEPOST_TARGET::mla
