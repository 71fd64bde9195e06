// Every kernel call goes through `submit`: it runs, it may be timed, and it may be recorded on a tape.
//
// A tape is a list of calls that is played again without Python in between. Calls keep pointers to their operands, so
// all that changes from one playing to the next must be behind pointers that stay (`views.h`, buffers).
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace milepost {

struct Call {
    int timer;
    std::function<void()> run;
};

// A tape does one thing at a time: start, stop and play throw std::logic_error while it does another.
class Tape : public std::enable_shared_from_this<Tape> {
public:
    void start();  // record what this thread submits; what was recorded before is lost
    void stop();   // on the thread that started
    void play();   // on any thread that records nothing
    int64_t size() const { return static_cast<int64_t>(calls_.size()); }
    void add(Call call) { calls_.push_back(std::move(call)); }

private:
    enum class State { idle, recording, playing };
    void become(State state);

    std::atomic<State> state_{State::idle};
    std::vector<Call> calls_;
};

// Time spent by part of the model and op, while switched on.
struct Timer {
    std::string part;
    std::string op;
    int64_t calls = 0;
    double seconds = 0;
};

void set_part(const std::string& part);  // of this thread's next calls
void set_timing(bool on);                // clears the timers
std::vector<Timer> timers();
bool timing();

int timer_of(const char* op);
void run_call(const Call& call);
Tape* recording();

template <class Args>
void submit(const char* op, void (*kernel)(const Args&), const Args& args) {
    Tape* tape = recording();
    if (tape == nullptr && !timing()) {
        kernel(args);
        return;
    }
    Call call{timer_of(op), [kernel, args] { kernel(args); }};
    run_call(call);
    if (tape != nullptr) tape->add(std::move(call));
}

}  // namespace milepost
