#include "bind.h"
#include "bind_finite.inl"
#include "bind_gated_activation.inl"
#include "bind_grouped_experts.inl"
#include "bind_kda.inl"
#include "bind_limits.inl"
#include "bind_linear.inl"
#include "bind_mla.inl"
#include "bind_norm.inl"
#include "bind_pack.inl"
#include "bind_route.inl"
#include "bind_rows.inl"

#include <pybind11/stl.h>

#include "matrix.h"
#include "threads.h"
#include "views.h"
#include "workspace.h"

namespace milepost {
namespace {

void bind_views(py::module_& module) {
    py::enum_<Float>(module, "Float").value("f32", Float::f32).value("bf16", Float::bf16);
    py::class_<Rows>(module, "Rows")
        .def(py::init([](int64_t num_rows, int64_t num_tokens, uintptr_t cu_seqlens, uintptr_t starts) {
            return Rows{num_rows, num_tokens, pointer<const int64_t>(cu_seqlens), pointer<const int64_t>(starts)};
        }))
        .def("assign", [](Rows& self, const Rows& other) { self = other; });
    py::class_<States>(module, "States")
        .def(py::init([](uintptr_t recurrent, uintptr_t conv, Float conv_type, int64_t tile_rows, int64_t head_dim,
                         int64_t conv_tile_size, int64_t tiles_per_page, int64_t pages, uintptr_t table) {
            States s;
            s.recurrent = pointer<float>(recurrent);
            s.conv = pointer<void>(conv);
            s.conv_type = conv_type;
            s.tile_rows = tile_rows;
            s.head_dim = head_dim;
            s.conv_tile_size = conv_tile_size;
            s.tiles_per_page = tiles_per_page;
            s.pages = pages;
            s.table = pointer<const int64_t>(table);
            return s;
        }))
        .def("leave", [](States& self, int64_t count, uintptr_t rows, uintptr_t ends, uintptr_t table, int64_t pages) {
            self.num_snapshots = count;
            self.snapshot_rows = pointer<const int64_t>(rows);
            self.snapshot_ends = pointer<const int64_t>(ends);
            self.snapshot_table = pointer<const int64_t>(table);
            self.snapshot_pages = pages;
        })
        .def("assign", [](States& self, const States& other) { self = other; });
    py::class_<Kv>(module, "Kv")
        .def(py::init([](uintptr_t cache, Float type, int64_t layers, int64_t block_size, int64_t row_dim, uintptr_t table,
                         int64_t blocks, int64_t page_stride, int64_t layer_stride) {
            return Kv{pointer<void>(cache), type, layers, block_size, row_dim, pointer<const int64_t>(table), blocks,
                      page_stride, layer_stride};
        }))
        .def("assign", [](Kv& self, const Kv& other) { self = other; });
}

void bind_matrix(py::module_& module) {
    module.attr("PANEL") = kPanel;
    module.attr("GROUP_BYTES") = kGroupBytes;
    py::enum_<Format>(module, "Format")
        .value("f32", Format::f32)
        .value("bf16", Format::bf16)
        .value("int8", Format::int8)
        .value("mxfp4", Format::mxfp4);
    py::class_<Matrix>(module, "Matrix")
        .def(py::init([](Format format, int64_t batch, int64_t outputs, int64_t inputs, uintptr_t data, uintptr_t scales) {
            return Matrix{format, batch, outputs, inputs, pointer<const void>(data), pointer<const float>(scales)};
        }));
}

void bind_tape(py::module_& module) {
    py::class_<Tape, std::shared_ptr<Tape>>(module, "Tape")
        .def(py::init<>())
        .def("start", &Tape::start)
        .def("stop", &Tape::stop)
        .def("play", &Tape::play, py::call_guard<Unlocked>())
        .def("__len__", &Tape::size);
    py::class_<Workspace, std::shared_ptr<Workspace>>(module, "Workspace")
        .def(py::init<>())
        .def("empty", [](std::shared_ptr<Workspace> self, int64_t bytes) { return std::make_unique<Block>(self, bytes); })
        .def("lend", [](std::shared_ptr<Workspace> self, uintptr_t address, int64_t bytes) {
            return std::make_unique<Block>(self, bytes, pointer<void>(address));
        })
        .def_property_readonly("num_bytes", &Workspace::num_bytes);
    py::class_<Block>(module, "Block", py::buffer_protocol()).def_buffer([](Block& block) {
        return py::buffer_info(block.data(), 1, py::format_descriptor<uint8_t>::format(), block.bytes());
    });
    module.def("set_part", &set_part);
    module.def("set_timing", &set_timing);
    module.def("timers", [] {
        py::list rows;
        for (const Timer& t : timers()) rows.append(py::make_tuple(t.part, t.op, t.calls, t.seconds));
        return rows;
    });
}

}  // namespace

PYBIND11_MODULE(_native, module) {
    module.def("set_num_threads", &set_num_threads);
    module.def("num_threads", &num_threads);
    module.def("target", [] { return table().target; });
    module.def("choose_target", &choose_target);
    bind_views(module);
    bind_matrix(module);
    bind_tape(module);
    bind_finite(module);
    bind_gated_activation(module);
    bind_grouped_experts(module);
    bind_kda(module);
    bind_limits(module);
    bind_linear(module);
    bind_mla(module);
    bind_norm(module);
    bind_pack(module);
    bind_route(module);
    bind_rows(module);
}

}  // namespace milepost
