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

// Submits a call without Python's lock.
template <class Args>
void submit_unlocked(const char* op, void (*kernel)(const Args&), const Args& args) {
    py::gil_scoped_release release;
    submit(op, kernel, args);
}

void bind_limits(py::module_& module);
void bind_linear(py::module_& module);

}  // namespace milepost
