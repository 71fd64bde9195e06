// Memory for what a forward pass computes on its way, given out again as soon as its last tensor is gone.
//
// A tape's calls keep the addresses that they were recorded with. Because a block goes back to its workspace and not
// to the system, the addresses stay valid while the workspace lives, and because playing repeats the order of the
// recording, two operands share an address only if they did so then. Tapes played one after the other may share one
// workspace.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace milepost {

class Workspace : public std::enable_shared_from_this<Workspace> {
public:
    ~Workspace() {
        for (void* block : blocks_) std::free(block);
    }

    void* take(int64_t bytes) {
        const int64_t size = rounded(bytes);
        std::lock_guard lock(lock_);
        auto& free = free_[size];
        if (!free.empty()) {
            void* block = free.back();
            free.pop_back();
            return block;
        }
        void* block = std::aligned_alloc(64, static_cast<size_t>(size));
        if (block == nullptr) throw std::bad_alloc();
        blocks_.push_back(block);
        total_ += size;
        return block;
    }

    void give_back(void* block, int64_t bytes) {
        std::lock_guard lock(lock_);
        free_[rounded(bytes)].push_back(block);
    }

    int64_t num_bytes() const {
        std::lock_guard lock(lock_);
        return total_;
    }

private:
    // Powers of two and the halves between: few sizes, so that blocks find new uses.
    static int64_t rounded(int64_t bytes) {
        int64_t size = 64;
        while (size < bytes) size *= 2;
        return size >= 256 && size / 4 * 3 >= bytes ? size / 4 * 3 : size;
    }

    mutable std::mutex lock_;
    std::map<int64_t, std::vector<void*>> free_;
    std::vector<void*> blocks_;
    int64_t total_ = 0;
};

// One piece of a workspace, exported to Python as a buffer. It goes back when it is gone, unless it was only lent: what
// lies at an address that a tape writes can be read through a loan, which keeps the workspace alive and nothing else.
class Block {
public:
    Block(std::shared_ptr<Workspace> owner, int64_t bytes)
        : owner_(std::move(owner)), bytes_(bytes), data_(owner_->take(bytes)), lent_(false) {}
    Block(std::shared_ptr<Workspace> owner, int64_t bytes, void* data)
        : owner_(std::move(owner)), bytes_(bytes), data_(data), lent_(true) {}
    ~Block() {
        if (!lent_) owner_->give_back(data_, bytes_);
    }
    Block(const Block&) = delete;
    Block& operator=(const Block&) = delete;

    void* data() const { return data_; }
    int64_t bytes() const { return bytes_; }

private:
    std::shared_ptr<Workspace> owner_;
    int64_t bytes_;
    void* data_;
    bool lent_;
};

}  // namespace milepost
