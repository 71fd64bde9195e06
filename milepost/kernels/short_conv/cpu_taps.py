"""The short convolution's sums and windows: the compiled loops."""

from __future__ import annotations

from numba import prange

from milepost.kernels.jit import Array, Kernel

__all__ = ["convolve"]


def _convolve(
    u: Array,  # [tokens, channels]
    weight: Array,  # [taps, channels]
    past: Array,  # [rows, taps - 1, channels] the windows, oldest input first; zeroed for fresh rows
    starts: Array,  # [rows] position of each row's first token
    offsets: Array,  # [rows + 1] token offsets of the rows
    row_ids: Array,  # [tokens] row of each token
    window_rows: Array,  # [windows] row of each window that is asked for
    window_ends: Array,  # [windows] token offset that it stands before
    y: Array,  # [tokens, channels], written
    windows: Array,  # [windows, taps - 1, channels], written: the last inputs before the ends
) -> None:
    taps, channels = weight.shape
    window = taps - 1
    for row in range(starts.shape[0]):
        if starts[row] == 0:
            past[row] = 0  # whatever lies in a fresh page is never used
    for n in range(window_rows.shape[0]):
        row = window_rows[n]
        begin = offsets[row]
        for i in range(window):
            t = window_ends[n] - begin - window + i  # of the input in its row; below 0 in the old window
            windows[n, i] = u[begin + t] if t >= 0 else past[row, window + t]
    for token in prange(u.shape[0]):
        row = row_ids[token]
        t = token - offsets[row]  # in its row
        for c in range(channels):
            y[token, c] = weight[window, c] * u[token, c]
        for back in range(1, taps):
            w = weight[window - back]
            x = u[token - back] if back <= t else past[row, window - back + t]
            for c in range(channels):
                y[token, c] += w[c] * x[c]


convolve = Kernel(_convolve)
