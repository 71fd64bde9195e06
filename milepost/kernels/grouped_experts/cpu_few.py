"""Routed experts of a few tokens: the compiled loops.

With one or two tokens per expert a product is a walk over the expert's weights, so each row of a
matrix is taken once (packed rows are unpacked into a scratch row that stays in the first cache) and
used for all of the expert's tokens. Every choice gets its own result; the caller adds them up in a
fixed order.
"""

from __future__ import annotations

import numpy as np
from numba import prange

from milepost.kernels.jit import Array, Kernel, subroutine

__all__ = ["dense_few", "packed_few"]

# Shared arguments: x [tokens, width]; order [choices] which choice (token * top_k + i), sorted by expert;
# experts [touched]; offsets [touched + 1] into order; top_k; situ 0 or 1 and its caps;
# out [choices, width], written.


def _dense_few(
    x: Array,
    order: Array,
    experts: Array,
    offsets: Array,
    top_k: int,
    w1: Array,  # [experts, intermediate, width]
    w3: Array,
    w2: Array,  # [experts, width, intermediate]
    situ: int,
    gate_cap: float,
    up_cap: float,
    out: Array,
) -> None:
    for item in prange(experts.shape[0]):
        expert = experts[item]
        chosen = order[offsets[item] : offsets[item + 1]]
        hidden = np.empty((chosen.shape[0], w1.shape[1]), x.dtype)
        for o in range(w1.shape[1]):
            _gate_row(w1[expert, o], w3[expert, o], x, chosen, top_k, situ, gate_cap, up_cap, hidden[:, o])
        for o in range(w2.shape[1]):
            _down_row(w2[expert, o], hidden, chosen, o, out)


def _packed_few(
    x: Array,
    order: Array,
    experts: Array,
    offsets: Array,
    top_k: int,
    w1: Array,  # [experts, intermediate, width / 2]
    s1: Array,  # [experts, intermediate, width / 32]
    w3: Array,
    s3: Array,
    w2: Array,  # [experts, width, intermediate / 2]
    s2: Array,
    codes: Array,  # [16] value of each code
    scales: Array,  # [256] value of each scale byte
    situ: int,
    gate_cap: float,
    up_cap: float,
    out: Array,
) -> None:
    width, intermediate = x.shape[1], w1.shape[1]
    for item in prange(experts.shape[0]):
        expert = experts[item]
        chosen = order[offsets[item] : offsets[item + 1]]
        hidden = np.empty((chosen.shape[0], intermediate), x.dtype)
        gate, up, down = np.empty(width, x.dtype), np.empty(width, x.dtype), np.empty(intermediate, x.dtype)
        for o in range(intermediate):
            _unpack(w1[expert, o], s1[expert, o], codes, scales, gate)
            _unpack(w3[expert, o], s3[expert, o], codes, scales, up)
            _gate_row(gate, up, x, chosen, top_k, situ, gate_cap, up_cap, hidden[:, o])
        for o in range(width):
            _unpack(w2[expert, o], s2[expert, o], codes, scales, down)
            _down_row(down, hidden, chosen, o, out)


@subroutine
def _unpack(packed: Array, scale: Array, codes: Array, scales: Array, out: Array) -> None:
    """One row of MXFP4, 16 bytes to 32 values a scale."""
    for group in range(scale.shape[0]):
        factor = scales[scale[group]]
        for i in range(group * 16, group * 16 + 16):
            byte = packed[i]
            out[2 * i] = codes[byte & 0xF] * factor
            out[2 * i + 1] = codes[byte >> 4] * factor


@subroutine
def _gate_row(
    gate: Array,
    up: Array,
    x: Array,
    chosen: Array,
    top_k: int,
    situ: int,
    gate_cap: float,
    up_cap: float,
    hidden: Array,
) -> None:
    """One hidden channel of the chosen tokens, from its rows [width] of w1 and w3."""
    for n in range(chosen.shape[0]):
        token = x[chosen[n] // top_k]
        g, u = x.dtype.type(0), x.dtype.type(0)
        for d in range(token.shape[0]):
            g += gate[d] * token[d]
            u += up[d] * token[d]
        sigmoid = 1 / (1 + np.exp(-g))
        if situ:
            hidden[n] = gate_cap * np.tanh(g / gate_cap) * sigmoid * (up_cap * np.tanh(u / up_cap))
        else:
            hidden[n] = g * sigmoid * u


@subroutine
def _down_row(down: Array, hidden: Array, chosen: Array, channel: int, out: Array) -> None:
    """One output channel of the chosen tokens, from its row [intermediate] of w2."""
    for n in range(chosen.shape[0]):
        row = hidden[n]
        y = down.dtype.type(0)
        for d in range(row.shape[0]):
            y += down[d] * row[d]
        out[chosen[n], channel] = y


dense_few = Kernel(_dense_few)
packed_few = Kernel(_packed_few)
