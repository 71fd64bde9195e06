// The kernels' threads: a pool that spins for a moment and then sleeps.
//
// A call never waits for a thread that has not started on it: chunks are claimed one by one, so a worker that the
// system took off its core delays only the chunk that it holds. That is what keeps the kernels usable on machines
// where other processes want the same cores.
#pragma once

#include <cstdint>
#include <type_traits>

#include "counts.h"

namespace milepost {

// Threads that calls may use, the caller's own included. Throws std::invalid_argument below 1.
void set_num_threads(int threads);
int num_threads();

// Calls body(context, begin, end) for chunks that cover 0 .. items, each of `grain` items (the last one of fewer), on
// the pool's threads and the caller's; returns when all are done. A call inside a call, or while another thread is in
// one, runs on the caller's thread alone. What an item computes must not depend on the chunk that it is in. What a body
// throws is thrown here, when all chunks are done; of several errors one.
void run_chunks(int64_t items, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context);

template <class Body>
void run_chunks(int64_t items, int64_t grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    auto call = [](void* context, int64_t begin, int64_t end) { (*static_cast<Plain*>(context))(begin, end); };
    run_chunks(items, grain, call, &body);
}

// body(begin, end) for chunks of about equal size, none smaller than `grain` unless it is the last.
template <class Body>
void parallel_for(int64_t items, int64_t grain, Body&& body) {
    const int64_t threads = num_threads();
    if (items <= grain || threads == 1) {
        if (items > 0) body(int64_t{0}, items);
        return;
    }
    // A few chunks a thread: one that falls behind leaves its share to the others.
    run_chunks(items, most(grain, pieces(items, 4 * threads)), body);
}

// body(item), cut into chunks likewise.
template <class Body>
void for_each(int64_t items, int64_t grain, Body&& body) {
    parallel_for(items, grain, [&](int64_t begin, int64_t end) {
        for (int64_t item = begin; item < end; ++item) body(item);
    });
}

}  // namespace milepost
