#include "mla_absorbed.inl"
#include "mla_expanded.inl"

namespace milepost::MILEPOST_TARGET {

static void mla_attention(const MlaAttentionArgs& args) {
    const Rows& rows = *args.rows;
    const int64_t* tokens = rows.cu_seqlens;
    const auto is_short = [&](int64_t row) { return tokens[row + 1] - tokens[row] <= args.absorbed_up_to; };
    for (int64_t row = 0; row < rows.num_rows;) {
        if (!is_short(row)) {
            mla::attend_expanded(args, row++);
            continue;
        }
        int64_t last = row;
        while (last < rows.num_rows && is_short(last)) ++last;
        for (int64_t begin = tokens[row]; begin < tokens[last]; begin += args.pass_tokens) {
            while (tokens[row + 1] <= begin) ++row;
            mla::AbsorbedPass(args, begin, least(begin + args.pass_tokens, tokens[last])).run(row);
        }
        row = last;
    }
}

}  // namespace milepost::MILEPOST_TARGET
