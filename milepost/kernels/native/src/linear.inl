#pragma once

#include "linear.h"
#include "panels.inl"
#include "threads.h"

namespace milepost::MILEPOST_TARGET {

constexpr int64_t kLeastWork = 1 << 15;  // multiplications that pay for a thread
constexpr int64_t kTasksPerThread = 4;

// How a product is cut into tasks: by panels, and by rows where panels alone are too few.
struct LinearCut {
    int64_t row_blocks;
    int64_t panel_blocks;

    LinearCut(int64_t batch, int64_t rows, int64_t panels)
        : row_blocks(pieces(rows, kBlockRows)), panel_blocks(pieces(panels, kBlockPanels)) {
        const int64_t wanted = kTasksPerThread * num_threads();
        const int64_t most_rows = pieces(rows, kTileRows);
        const int64_t most_panels = pieces(panels, kPanelsAtOnce);
        while (batch * row_blocks * panel_blocks < wanted) {
            if (panel_blocks < most_panels) panel_blocks = least(2 * panel_blocks, most_panels);
            else if (row_blocks < most_rows) row_blocks = least(2 * row_blocks, most_rows);
            else if (panel_blocks < panels) panel_blocks = panels;
            else break;
        }
    }
};

static void linear_block(const LinearArgs& args, int64_t item, int64_t row, int64_t end_row, int64_t panel,
                         int64_t end_panel) {
    const float* x[kBlockRows];
    float* y[kBlockRows];
    for (int64_t r = row; r < end_row; ++r) {
        x[r - row] = args.x + item * args.x_batch_stride + r * args.x_stride;
        y[r - row] = args.y + item * args.y_batch_stride + r * args.y_stride + panel * kPanel;
    }
    panels_product(*args.matrix, item, panel, end_panel - panel, x, y, end_row - row, args.accumulate);
}

static void linear(const LinearArgs& args) {
    const Matrix& matrix = *args.matrix;
    if (args.rows == 0) return;
    const LinearCut cut(matrix.batch, args.rows, matrix.panels());
    const int64_t tasks = matrix.batch * cut.row_blocks * cut.panel_blocks;
    const int64_t work = matrix.batch * args.rows * matrix.inputs * matrix.panels() * kPanel / tasks;
    parallel_for(tasks, kLeastWork / (work + 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t task = begin; task < end; ++task) {
            const int64_t panels = task % cut.panel_blocks;
            const int64_t rows = task / cut.panel_blocks % cut.row_blocks;
            linear_block(args, task / cut.panel_blocks / cut.row_blocks, rows * args.rows / cut.row_blocks,
                         (rows + 1) * args.rows / cut.row_blocks, panels * matrix.panels() / cut.panel_blocks,
                         (panels + 1) * matrix.panels() / cut.panel_blocks);
        }
    });
}

}  // namespace milepost::MILEPOST_TARGET
