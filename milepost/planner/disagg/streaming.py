"""When a transfer ends that may begin before prefill does: whole, by chunks, or by layers.

A link sends one piece after the other, each when it is ready:

    whole        everything is ready when prefill ends
    chunk-wise   a chunk's KV is ready when the chunk is computed; the state when the last one is
    layer-wise   a layer's share of a chunk's KV is ready when the layer is computed, and the layer's share
                 of the state in the last chunk; layers are taken to be equal

What a request waits for beyond prefill is *exposed*; the rest is hidden behind computing. KV that was cached
is there from the beginning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

__all__ = ["Chunk", "Exposed", "exposed_seconds", "transfer_exposed"]


class Chunk(NamedTuple):
    """A chunk of a prompt: how long it is computed, and the bytes of its KV."""

    seconds: float
    kv_bytes: float


class Exposed(NamedTuple):
    """Seconds from the end of prefill to the end of the transfer, by way of streaming."""

    whole: float
    chunk_wise: float
    layer_wise: float

    def by(self, streaming: str) -> float:
        """Of a way by its name: "whole", "chunks" or "layers"."""
        return {"whole": self.whole, "chunks": self.chunk_wise, "layers": self.layer_wise}[streaming]


def exposed_seconds(pieces: Iterable[tuple[float, float]], end: float, bytes_per_second: float) -> float:
    """Seconds from `end` to the arrival of the last byte.

    Args:
        pieces: (seconds at which it is ready, bytes), in the order in which they are sent.
        end: of prefill, seconds.
        bytes_per_second: of the link.
    """
    free = 0.0
    for ready, size in pieces:
        free = max(free, ready) + size / bytes_per_second
    return max(0.0, free - end)


def transfer_exposed(
    chunks: Sequence[Chunk], state_bytes: float, cached_kv_bytes: float, layers: int, bytes_per_second: float
) -> Exposed:
    """What each way of streaming leaves exposed.

    Args:
        chunks: in order; one at least.
        state_bytes: of the state, which is complete behind the last chunk.
        cached_kv_bytes: of KV that need not be computed.
        layers: of the model.
        bytes_per_second: of the link.
    """
    ends = list(accumulate(chunk.seconds for chunk in chunks))
    end = ends[-1]
    everything = sum(chunk.kv_bytes for chunk in chunks) + state_bytes + cached_kv_bytes
    cached = (0.0, cached_kv_bytes)
    by_chunk = [(at, chunk.kv_bytes) for at, chunk in zip(ends, chunks, strict=True)]
    by_layer = []
    for at, chunk in zip(ends, chunks, strict=True):
        state = state_bytes if chunk is chunks[-1] else 0.0
        share = (chunk.kv_bytes + state) / layers
        by_layer += [(at - chunk.seconds * (layers - done) / layers, share) for done in range(1, layers + 1)]
    return Exposed(
        whole=exposed_seconds([(end, everything)], end, bytes_per_second),
        chunk_wise=exposed_seconds(chain([cached], by_chunk, [(end, state_bytes)]), end, bytes_per_second),
        layer_wise=exposed_seconds(chain([cached], by_layer), end, bytes_per_second),
    )
