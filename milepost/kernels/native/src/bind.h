// How an op is offered to Python: `kernels/<op>/cpu.py` passes addresses as integers, checked there.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>

#include "table.h"
#include "tape.h"

namespace milepost {

namespace py = pybind11;

template <class T>
T* pointer(uintptr_t address) {
    return reinterpret_cast<T*>(address);
}

// Python's lock is free while this lives. Unlike pybind11's, its destructor may throw: in a thread that comes back while
// the interpreter shuts down, Python ends the thread by unwinding its stack, and a destructor that may not throw would
// make that the end of the process.
class Unlocked {
public:
    Unlocked() : state_(PyEval_SaveThread()) {}
    ~Unlocked() noexcept(false) { PyEval_RestoreThread(state_); }
    Unlocked(const Unlocked&) = delete;
    Unlocked& operator=(const Unlocked&) = delete;

private:
    PyThreadState* state_;
};

// Submits a call without Python's lock.
template <class Args>
void submit_unlocked(const char* op, void (*kernel)(const Args&), const Args& args) {
    Unlocked unlocked;
    submit(op, kernel, args);
}

}  // namespace milepost
