// Latent attention (MLA, NoPE) over paged rows: `milepost/kernels/mla_write` and `mla_attention` say what is computed.
#pragma once

#include "matrix.h"
#include "views.h"

namespace milepost {

struct MlaWriteArgs {
    const float* latent;  // [tokens, lora]
    int64_t latent_stride;
    const float* k_pe;  // [tokens, rope]
    int64_t k_pe_stride;
    const float* weight;  // [lora]
    int64_t lora;
    float eps;
    const Kv* kv;
    int64_t layer;
    const Rows* rows;
};

// Queries that meet cached rows together: so many at a time.
constexpr int64_t kQueryLanes = 32;

// A short row's context is cut into parts, so many at most.
constexpr int64_t kMostParts = 32;

struct MlaAttentionArgs {
    const float* q;  // [tokens, heads, nope + rope], a token's heads one after the other
    int64_t q_stride;
    const Matrix* k_b;  // [heads] of [lora, nope]
    const Matrix* v_b;  // [heads] of [v, lora]
    const float* gate;  // [tokens, heads * v], or null
    int64_t gate_stride;
    const Kv* kv;
    int64_t layer;
    const Rows* rows;
    float* out;  // [tokens, heads, v]
    // Rows of at most so many tokens are attended in the latent space, longer ones in the heads' own.
    int64_t absorbed_up_to;
    // Of the former: how many tokens to take at a time, and memory for them.
    int64_t pass_tokens;
    float* latent;  // [pass_tokens, heads, lora]: queries
    float* mixed;   // [pass_tokens, heads, lora]: results
    float* parts;   // [num_parts, kQueryLanes * (padded lora + 2)]: of softmaxes over parts of the context
    int64_t num_parts;
};

}  // namespace milepost
