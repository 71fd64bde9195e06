#pragma once

#include "kda.h"
#include "kda_chunk.inl"
#include "kda_step.inl"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

constexpr int64_t kLeastStateFloats = 1 << 13;  // of a head's matrix that pay for a claim by a thread

static void kda(const KdaArgs& args) {
    const Rows& rows = *args.rows;
    const int64_t matrix = args.states->head_dim * args.states->head_dim;
    const bool steps = rows.num_tokens == rows.num_rows;
    auto body = [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) {
            const int64_t row = item / args.heads, head = item % args.heads;
            if (rows.cu_seqlens[row + 1] - rows.cu_seqlens[row] == 1) step_row(args, row, head);
            else chunk_row(args, row, head);
        }
    };
    const int64_t items = rows.num_rows * args.heads;
    if (steps) return parallel_for(items, kLeastStateFloats / matrix + 1, body);
    // Head by head: the heads of one long row among short ones must not end up with one thread.
    run_chunks(items, 1, body);
}

}  // namespace milepost::MILEPOST_TARGET
