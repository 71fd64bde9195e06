#pragma once

#include "mla.h"
#include "norm.inl"

namespace milepost::MILEPOST_TARGET {

template <class Number>
static void write_row(const MlaWriteArgs& args, int64_t token, Number* row) {
    const float* latent = args.latent + token * args.latent_stride;
    const float* k_pe = args.k_pe + token * args.k_pe_stride;
    const float factor = inverse_root(sum_of_squares(latent, args.lora), args.lora, args.eps);
    int64_t i = 0;
    for (; i + kWidth <= args.lora; i += kWidth) store(row + i, load(latent + i) * factor * load(args.weight + i));
    for (; i < args.lora; ++i) narrow(latent[i] * factor * args.weight[i], row + i);
    const int64_t rope = args.kv->row_dim - args.lora;
    for (i = 0; i < rope; ++i) narrow(k_pe[i], row + args.lora + i);
}

static void mla_write(const MlaWriteArgs& args) {
    const Rows& rows = *args.rows;
    const Kv& kv = *args.kv;
    parallel_for(rows.num_tokens, rows_for_a_thread(kv.row_dim), [&](int64_t begin, int64_t end) {
        int64_t row = rows.row_of(begin);
        for (int64_t token = begin; token < end; ++token) {
            while (token >= rows.cu_seqlens[row + 1]) ++row;
            const int64_t position = rows.starts[row] + token - rows.cu_seqlens[row];
            const int64_t page = kv.table[row * kv.blocks + position / kv.block_size];
            const int64_t at =
                page * kv.page_stride + args.layer * kv.layer_stride + position % kv.block_size * kv.row_dim;
            if (kv.type == Float::bf16) {
                write_row(args, token, static_cast<uint16_t*>(kv.cache) + at);
            } else {
                write_row(args, token, static_cast<float*>(kv.cache) + at);
            }
        }
    });
}

}  // namespace milepost::MILEPOST_TARGET
