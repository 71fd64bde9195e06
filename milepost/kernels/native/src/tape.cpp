#include "tape.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <mutex>
#include <stdexcept>

namespace milepost {
namespace {

thread_local std::shared_ptr<Tape> tape_of_thread;  // kept alive while it records
thread_local std::string part_of_thread;

std::mutex timers_lock;
std::vector<Timer> all_timers;
std::atomic<bool> timing_on{false};

}  // namespace

void Tape::become(State state) {
    State idle = State::idle;
    if (!state_.compare_exchange_strong(idle, state)) throw std::logic_error("the tape is being recorded or played");
}

void Tape::start() {
    if (tape_of_thread) throw std::logic_error("this thread records another tape");
    become(State::recording);
    calls_.clear();
    tape_of_thread = shared_from_this();
}

void Tape::stop() {
    if (tape_of_thread.get() != this) throw std::logic_error("this thread does not record the tape");
    tape_of_thread.reset();
    state_ = State::idle;
}

void Tape::play() {
    if (tape_of_thread) throw std::logic_error("a tape can't be recorded from another one");
    become(State::playing);
    struct Stop {
        std::atomic<State>& state;
        ~Stop() { state = State::idle; }
    } stop{state_};
    for (const Call& call : calls_) run_call(call);
}

Tape* recording() { return tape_of_thread.get(); }

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
