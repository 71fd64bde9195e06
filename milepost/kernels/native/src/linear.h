// y[item, row, :] (+)= matrix[item] x[item, row, :], for every matrix of a batch.
#pragma once

#include "matrix.h"

namespace milepost {

struct LinearArgs {
    const Matrix* matrix;
    const float* x;
    int64_t x_stride;        // elements from row to row
    int64_t x_batch_stride;  // and from item to item
    float* y;
    int64_t y_stride;
    int64_t y_batch_stride;
    int64_t rows;
    bool accumulate;  // add to what y holds
};

}  // namespace milepost
