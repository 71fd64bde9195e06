// The work is cut into blocks of tokens and channels. A row's window is read and written by the block that holds the
// row's first token alone, which therefore also computes the few tokens behind it that reach back into the window.
#pragma once

#include "kda_state.inl"
#include "lanes.h"
#include "scratch.h"
#include "short_conv.h"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

constexpr int64_t kConvTokens = 8;
constexpr int64_t kConvChannels = 512;

// A row's inputs before the step, or those to be left behind it: one block of channels of a window.
struct Window {
    int64_t length;    // taps - 1
    int64_t channels;  // of all
    int64_t first;     // channel
    int64_t count;     // of channels
    float* values;     // [length, count]
};

// Calls body(address, values, n) for the pieces of a window, which lies flat over tiles: n elements of T each.
template <class T, class Body>
static void window_pieces(const States& states, const int64_t* pages, int64_t first_tile, const Window& w, Body body) {
    const int64_t size = states.conv_tile_size;
    for (int64_t i = 0; i < w.length; ++i) {
        for (int64_t done = 0; done < w.count;) {
            const int64_t at = i * w.channels + w.first + done, offset = at % size;
            const int64_t n = least(w.count - done, size - offset);
            T* tile = static_cast<T*>(states.conv) + states.tile(pages, first_tile + at / size) * size;
            body(tile + offset, w.values + i * w.count + done, n);
            done += n;
        }
    }
}

template <class T>
static void read_window(const States& states, const int64_t* pages, int64_t first_tile, const Window& w) {
    window_pieces<T>(states, pages, first_tile, w, [](const T* from, float* to, int64_t n) {
        for (int64_t c = 0; c < n; c += kWidth) store_first(to + c, load_first(from + c, n - c), n - c);
    });
}

template <class T>
static void write_window(const States& states, const int64_t* pages, int64_t first_tile, const Window& w) {
    window_pieces<T>(states, pages, first_tile, w, [](T* to, const float* from, int64_t n) {
        for (int64_t c = 0; c < n; c += kWidth) store_first(to + c, load_first(from + c, n - c), n - c);
    });
}

// Input `t` tokens behind the row's first; before it, the past's.
static const float* input(const ShortConvArgs& args, const Window& past, int64_t row_begin, int64_t t) {
    if (t < 0) return past.values + (past.length + t) * past.count;
    return args.u + (row_begin + t) * args.u_stride + past.first;
}

// The window that stands before token `end` of the row, which holds inputs of the past where the row is young.
template <class T>
static void leave_window(const ShortConvArgs& args, const Window& past, float* memory, int64_t row_begin, int64_t end,
                         const int64_t* pages) {
    Window left = past;
    left.values = memory;
    for (int64_t i = 0; i < left.length; ++i) {
        const float* from = input(args, past, row_begin, end - row_begin - left.length + i);
        std::memcpy(memory + i * left.count, from, static_cast<size_t>(left.count) * sizeof(float));
    }
    write_window<T>(*args.states, pages, args.first_tile, left);
}

// One token's channels begin .. end - 1 from its inputs x. Taps: their number, or 0 for any; Whole: in whole vectors.
template <int Taps, bool Whole>
static inline void convolve_channels(const float* weight, int64_t weight_stride, const float* const* x, int64_t any_taps,
                                     int64_t begin, int64_t end, float* y) {
    const int64_t taps = Taps ? Taps : any_taps;
    for (int64_t c = begin; c < end; c += kWidth) {
        VecF sum{};
        for (int64_t j = 0; j < taps; ++j) {
            sum += load_part<Whole>(weight + j * weight_stride + c, end - c) * load_part<Whole>(x[j] + c, end - c);
        }
        store_part<Whole>(y + c, silu(sum), end - c);
    }
}

// Tokens begin .. end - 1 of the step, all of one row, for the past's channels.
static void convolve(const ShortConvArgs& args, const Window& past, int64_t row_begin, int64_t begin, int64_t end) {
    for (int64_t token = begin; token < end; ++token) {
        const float* x[kMostTaps];
        for (int64_t j = 0; j < args.taps; ++j) x[j] = input(args, past, row_begin, token - row_begin - past.length + j);
        const float* weight = args.weight + past.first;
        float* y = args.y + token * args.channels + past.first;
        const int64_t whole = past.count / kWidth * kWidth;
        if (args.taps == 4) convolve_channels<4, true>(weight, args.channels, x, args.taps, 0, whole, y);
        else convolve_channels<0, true>(weight, args.channels, x, args.taps, 0, whole, y);
        convolve_channels<0, false>(weight, args.channels, x, args.taps, whole, past.count, y);
    }
}

// A row's first tokens, up to `end`, and its windows.
template <class T>
static void begin_row(const ShortConvArgs& args, Window past, int64_t row, int64_t end) {
    const States& states = *args.states;
    const int64_t begin = args.rows->cu_seqlens[row], row_end = args.rows->cu_seqlens[row + 1];
    const int64_t* pages = states.table + row * states.pages;
    const int64_t size = past.length * past.count;
    past.values = scratch(2 * size);
    // Whatever lies in a fresh page is never read.
    if (args.rows->starts[row] == 0) std::memset(past.values, 0, static_cast<size_t>(size) * sizeof(float));
    else read_window<T>(states, pages, args.first_tile, past);
    convolve(args, past, begin, begin, end);
    float* memory = past.values + size;
    for (int64_t s = snapshot_behind(states, begin); s < states.num_snapshots && states.snapshot_ends[s] <= row_end; ++s) {
        leave_window<T>(args, past, memory, begin, states.snapshot_ends[s], states.snapshot_table + s * states.snapshot_pages);
    }
    leave_window<T>(args, past, memory, begin, row_end, pages);
}

static void conv_block(const ShortConvArgs& args, int64_t begin, int64_t end, const Window& past) {
    for (int64_t row = args.rows->row_of(begin); row < args.rows->num_rows; ++row) {
        const int64_t row_begin = args.rows->cu_seqlens[row], row_end = args.rows->cu_seqlens[row + 1];
        if (row_begin >= end) return;
        const int64_t reach = row_begin + past.length;  // tokens before it need the past
        if (row_begin >= begin) {
            const int64_t to = least(row_end, most(reach, end));
            if (args.states->conv_type == Float::f32) begin_row<float>(args, past, row, to);
            else begin_row<uint16_t>(args, past, row, to);
        } else {
            convolve(args, past, row_begin, most(reach, begin), least(row_end, end));
        }
    }
}

static void short_conv(const ShortConvArgs& args) {
    const int64_t blocks = pieces(args.channels, kConvChannels);
    for_each(pieces(args.tokens, kConvTokens) * blocks, 1, [&](int64_t item) {
        const int64_t token = item / blocks * kConvTokens, first = item % blocks * kConvChannels;
        const Window past{args.taps - 1, args.channels, first, least(kConvChannels, args.channels - first), nullptr};
        conv_block(args, token, least(token + kConvTokens, args.tokens), past);
    });
}

}  // namespace milepost::MILEPOST_TARGET
