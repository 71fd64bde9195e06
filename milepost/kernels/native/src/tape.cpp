#include "tape.h"

#include <algorithm>
#include <atomic>
#include <iterator>
#include <mutex>

namespace milepost {
namespace {

thread_local Tape* tape_of_thread = nullptr;
thread_local std::string part_of_thread;

std::mutex timers_lock;
std::vector<Timer> all_timers;
std::atomic<bool> timing_on{false};

}  // namespace

void Tape::start() {
    calls_.clear();
    tape_of_thread = this;
}

void Tape::stop() { tape_of_thread = nullptr; }

void Tape::play() const {
    for (const Call& call : calls_) run_call(call);
}

Tape* recording() { return tape_of_thread; }

void set_part(const std::string& part) { part_of_thread = part; }

void set_timing(bool on) {
    std::lock_guard lock(timers_lock);
    for (Timer& timer : all_timers) timer.calls = 0, timer.seconds = 0;
    timing_on = on;
}

bool timing() { return timing_on.load(std::memory_order_relaxed); }

std::vector<Timer> timers() {
    std::lock_guard lock(timers_lock);
    std::vector<Timer> used;
    std::copy_if(all_timers.begin(), all_timers.end(), std::back_inserter(used), [](const Timer& t) { return t.calls > 0; });
    return used;
}

// Timers are kept for good, so that a number stands for the same part and op on every tape.
int timer_of(const char* op) {
    std::lock_guard lock(timers_lock);
    for (size_t i = 0; i < all_timers.size(); ++i) {
        if (all_timers[i].op == op && all_timers[i].part == part_of_thread) return static_cast<int>(i);
    }
    all_timers.push_back(Timer{part_of_thread, op, 0, 0});
    return static_cast<int>(all_timers.size()) - 1;
}

void run_call(const Call& call) {
    if (!timing()) {
        call.run();
        return;
    }
    const auto begin = std::chrono::steady_clock::now();
    call.run();
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin;
    std::lock_guard lock(timers_lock);
    ++all_timers[call.timer].calls;
    all_timers[call.timer].seconds += spent.count();
}

}  // namespace milepost
