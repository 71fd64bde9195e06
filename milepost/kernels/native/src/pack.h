// How weights get into panels (`matrix.h`) while a checkpoint is read: some rows at a time, each output once.
//
// Formats that hold integers are made here too. The rules are those of `milepost.models.int8` and
// `milepost.models.mxfp4`, bit for bit.
#pragma once

#include <cstdint>

#include "matrix.h"
#include "views.h"

namespace milepost {

// Which of a matrix's rows are written: outputs first .. first + count of one item.
struct RowSpan {
    int64_t item;
    int64_t first;
    int64_t count;
};

// Rows [count, inputs] of floats. False when one isn't finite and the format can't hold that; what is written then is
// of no use.
bool pack_rows(const Matrix& matrix, const RowSpan& span, Float type, const void* rows);

// Rows of MXFP4 as checkpoints have them: codes [count, inputs / 2], scales [count, inputs / 32].
void pack_codes(const Matrix& matrix, const RowSpan& span, const uint8_t* codes);
void pack_scales(const Matrix& matrix, const RowSpan& span, const uint8_t* scales);

}  // namespace milepost
