#include "threads.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace milepost {
namespace {

constexpr auto kSpin = std::chrono::microseconds(50);  // longer than a decode step's gap between two kernels
constexpr int kPausesBetweenLooks = 16;
constexpr int kSpinsBeforeYield = 2000;

void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

thread_local bool inside_a_call = false;

// A job is open while its ticket's index is below `chunks`. The ticket holds the job's number in its upper half and the
// next chunk's index in its lower one, so that a claim (compare and swap) can only succeed on the job that was looked
// at: a job's fields are written while the ticket is closed, and read before the claim that shows they were the right
// ones. They are written with release and read with acquire: whoever sees a field of the next job also sees that the
// ticket was closed for it, and its claim on the job before fails.
class Pool {
    static constexpr uint64_t kClosed = ~uint64_t{0};

public:
    explicit Pool(int size) : size_(size) {}

    int size() const { return size_.load(std::memory_order_relaxed); }

    void resize(int size) {
        size_.store(size, std::memory_order_seq_cst);
        size_.notify_all();
    }

    bool run(int64_t items, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context) {
        std::unique_lock owner(owner_, std::try_to_lock);
        if (!owner.owns_lock()) return false;
        start_workers();
        const auto chunks = static_cast<uint32_t>((items + grain - 1) / grain);
        ticket_.store(kClosed, std::memory_order_seq_cst);  // no claim can succeed while the fields change
        body_.store(body, std::memory_order_release);
        context_.store(context, std::memory_order_release);
        items_.store(items, std::memory_order_release);
        grain_.store(grain, std::memory_order_release);
        chunks_.store(chunks, std::memory_order_release);
        done_.store(0, std::memory_order_release);
        ++job_;
        ticket_.store(uint64_t{job_} << 32, std::memory_order_seq_cst);
        if (sleepers_.load(std::memory_order_seq_cst) > 0) {
            bell_.fetch_add(1, std::memory_order_seq_cst);
            bell_.notify_all();
        }
        inside_a_call = true;
        while (work()) {}
        inside_a_call = false;
        for (int spins = 0; done_.load(std::memory_order_acquire) != chunks;) {
            pause();
            if (++spins >= kSpinsBeforeYield) sched_yield();
        }
        if (failed_.exchange(false, std::memory_order_acquire)) std::rethrow_exception(std::exchange(error_, nullptr));
        return true;
    }

private:
    // Does one chunk of the open job, if there is one.
    bool work() {
        uint64_t ticket = ticket_.load(std::memory_order_seq_cst);
        for (;;) {
            auto body = body_.load(std::memory_order_acquire);
            void* context = context_.load(std::memory_order_acquire);
            const int64_t items = items_.load(std::memory_order_acquire);
            const int64_t grain = grain_.load(std::memory_order_acquire);
            const auto index = static_cast<uint32_t>(ticket);
            if (index >= chunks_.load(std::memory_order_acquire)) return false;
            if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_seq_cst)) continue;
            const int64_t begin = index * grain;
            try {
                body(context, begin, begin + grain < items ? begin + grain : items);
            } catch (...) {
                keep_error();
            }
            done_.fetch_add(1, std::memory_order_release);
            return true;
        }
    }

    // The caller throws the first error that any thread met, once all have finished.
    void keep_error() {
        std::lock_guard lock(error_lock_);
        if (error_ == nullptr) error_ = std::current_exception();
        failed_.store(true, std::memory_order_release);
    }

    void serve(int number) {
        inside_a_call = true;  // a body that calls parallel_for goes on alone
        for (;;) {
            const int size = size_.load(std::memory_order_seq_cst);
            if (number >= size) {
                size_.wait(size, std::memory_order_seq_cst);
            } else if (!spin()) {
                sleep();
            }
        }
    }

    // Works, and waits for more work for a moment; false once that has been in vain.
    bool spin() {
        const auto until = std::chrono::steady_clock::now() + kSpin;
        do {
            if (work()) return true;
            for (int i = 0; i < kPausesBetweenLooks; ++i) pause();
        } while (std::chrono::steady_clock::now() < until);
        return false;
    }

    void sleep() {
        const uint32_t bell = bell_.load(std::memory_order_seq_cst);
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        // Whoever opens a job after this look sees a sleeper and rings.
        if (!work()) bell_.wait(bell, std::memory_order_seq_cst);
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }

    void start_workers() {
        while (!exhausted_ && static_cast<int>(workers_) < size() - 1) {
            try {
                std::thread([this, number = workers_ + 1] { serve(number); }).detach();
                ++workers_;
            } catch (const std::system_error&) {
                exhausted_ = true;  // the system gives no more: go on with those there are
            }
        }
    }

    std::atomic<int> size_;  // threads that may work, the caller's own included
    std::mutex owner_;
    int workers_ = 0;  // threads started; those beyond `size_` wait until it grows
    bool exhausted_ = false;
    uint32_t job_ = 0;
    alignas(64) std::atomic<uint64_t> ticket_{kClosed};
    alignas(64) std::atomic<uint32_t> done_{0};
    alignas(64) std::atomic<uint32_t> bell_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<void (*)(void*, int64_t, int64_t)> body_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<int64_t> items_{0};
    std::atomic<int64_t> grain_{1};
    std::atomic<uint32_t> chunks_{0};
    std::mutex error_lock_;
    std::exception_ptr error_;
    std::atomic<bool> failed_{false};
};

// Never destroyed: its threads may outlive everything else of the process.
std::atomic<Pool*> pool{nullptr};

// A forked child has none of the threads, and locks in whatever state they were: it gets a pool of its own.
void forget_pool_in_child() {
    pool.store(new Pool(pool.load()->size()));
    inside_a_call = false;
}

Pool& the_pool() {
    Pool* current = pool.load(std::memory_order_acquire);
    if (current != nullptr) return *current;
    auto* fresh = new Pool(1);
    if (pool.compare_exchange_strong(current, fresh, std::memory_order_acq_rel)) {
        pthread_atfork(nullptr, nullptr, forget_pool_in_child);
        return *fresh;
    }
    delete fresh;
    return *current;
}

}  // namespace

int num_threads() { return the_pool().size(); }

void set_num_threads(int threads) {
    if (threads < 1) throw std::invalid_argument("kernels need at least 1 thread. Given: " + std::to_string(threads));
    the_pool().resize(threads);
}

void run_chunks(int64_t items, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context) {
    if (items <= 0) return;
    if (inside_a_call || items <= grain || !the_pool().run(items, grain, body, context)) body(context, 0, items);
}

}  // namespace milepost
