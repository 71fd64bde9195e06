#include "threads.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

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

// A job is open while its ticket's index is below `items`. The ticket holds the job's number in its upper half and the
// next chunk's index in its lower one, so that a claim (compare and swap) can only succeed on the job that was looked
// at: a job's fields are written while the ticket is closed, and read before the claim that shows they were the right
// ones.
class Pool {
    static constexpr uint64_t kClosed = ~uint64_t{0};

public:
    explicit Pool(int threads) : threads_(threads) {}

    ~Pool() { stop(); }

    int size() const { return threads_; }

    bool run(int64_t items, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context) {
        std::unique_lock owner(owner_, std::try_to_lock);
        if (!owner.owns_lock()) return false;
        start();
        const auto chunks = static_cast<uint32_t>((items + grain - 1) / grain);
        ticket_.store(kClosed, std::memory_order_seq_cst);  // no claim can succeed while the fields change
        body_.store(body, std::memory_order_relaxed);
        context_.store(context, std::memory_order_relaxed);
        items_.store(items, std::memory_order_relaxed);
        grain_.store(grain, std::memory_order_relaxed);
        chunks_.store(chunks, std::memory_order_relaxed);
        done_.store(0, std::memory_order_relaxed);
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
        return true;
    }

private:
    // Does one chunk of the open job, if there is one.
    bool work() {
        uint64_t ticket = ticket_.load(std::memory_order_acquire);
        for (;;) {
            auto body = body_.load(std::memory_order_relaxed);
            void* context = context_.load(std::memory_order_relaxed);
            const int64_t items = items_.load(std::memory_order_relaxed);
            const int64_t grain = grain_.load(std::memory_order_relaxed);
            const auto index = static_cast<uint32_t>(ticket);
            if (index >= chunks_.load(std::memory_order_relaxed)) return false;
            if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
            const int64_t begin = index * grain;
            body(context, begin, begin + grain < items ? begin + grain : items);
            done_.fetch_add(1, std::memory_order_release);
            return true;
        }
    }

    void serve() {
        inside_a_call = true;  // a body that calls parallel_for goes on alone
        while (!stopping_.load(std::memory_order_acquire)) {
            if (!spin()) sleep();
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
        if (!work() && !stopping_.load(std::memory_order_seq_cst)) bell_.wait(bell, std::memory_order_seq_cst);
        sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }

    void start() {
        while (static_cast<int>(workers_.size()) < threads_ - 1) {
            workers_.emplace_back([this] { serve(); });
        }
    }

    void stop() {
        stopping_.store(true, std::memory_order_seq_cst);
        bell_.fetch_add(1, std::memory_order_seq_cst);
        bell_.notify_all();
        for (auto& worker : workers_) worker.join();
    }

    const int threads_;
    std::mutex owner_;
    std::vector<std::thread> workers_;
    uint32_t job_ = 0;
    alignas(64) std::atomic<uint64_t> ticket_{kClosed};
    alignas(64) std::atomic<uint32_t> done_{0};
    alignas(64) std::atomic<uint32_t> bell_{0};
    std::atomic<int> sleepers_{0};
    std::atomic<bool> stopping_{false};
    std::atomic<void (*)(void*, int64_t, int64_t)> body_{nullptr};
    std::atomic<void*> context_{nullptr};
    std::atomic<int64_t> items_{0};
    std::atomic<int64_t> grain_{1};
    std::atomic<uint32_t> chunks_{0};
};

std::mutex pool_lock;
std::atomic<Pool*> pool{nullptr};

// A forked child has none of the threads, and locks in whatever state they were: it gets a pool of its own.
void forget_pool_in_child() {
    if (Pool* old = pool.load()) pool.store(new Pool(old->size()));
    inside_a_call = false;
}

Pool& the_pool() {
    Pool* current = pool.load(std::memory_order_acquire);
    if (current != nullptr) return *current;
    std::lock_guard lock(pool_lock);
    if (pool.load() == nullptr) {
        pthread_atfork(nullptr, nullptr, forget_pool_in_child);
        pool.store(new Pool(1), std::memory_order_release);
    }
    return *pool.load();
}

}  // namespace

int num_threads() { return the_pool().size(); }

void set_num_threads(int threads) {
    Pool& old = the_pool();
    if (threads == old.size()) return;
    std::lock_guard lock(pool_lock);
    pool.store(new Pool(threads), std::memory_order_release);
    // The old pool is left to sleep: another thread may be inside one of its calls. Sizes change once or twice a process.
}

void run_chunks(int64_t items, int64_t grain, void (*body)(void*, int64_t, int64_t), void* context) {
    if (items <= 0) return;
    if (inside_a_call || items <= grain || !the_pool().run(items, grain, body, context)) body(context, 0, items);
}

}  // namespace milepost
