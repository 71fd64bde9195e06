"""Safetensors shards of a checkpoint folder: headers read and checked, data mapped and copied out.

A shard is ``<u64 header length> <JSON header> <data>``; the header maps each tensor name to its dtype,
shape and byte range in the data, and the ranges must fill the data without holes or overlaps
(safetensors' format description). Several shards come with ``model.safetensors.index.json``, whose
``weight_map`` says which shard holds which tensor.

Data is read through a memory map, a few MB at a time, and the pages that were read are given back at
once: mapped pages count as resident memory, so a mapped shard would otherwise double the peak.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO, Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from milepost.error_text import listing
from milepost.errors import CheckpointError

__all__ = ["DTYPES", "Checkpoint", "TensorEntry", "has_weights"]

INDEX_NAME: Final = "model.safetensors.index.json"
SINGLE_NAME: Final = "model.safetensors"
MAX_HEADER_BYTES: Final = 100_000_000  # safetensors' own limit
STAGING_BYTES: Final = 8 << 20

DTYPES: Final[dict[str, torch.dtype]] = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
ITEM_BYTES: Final = {name: dtype.itemsize for name, dtype in DTYPES.items()}

_Size = Annotated[int, msgspec.Meta(ge=0)]


class _HeaderEntry(msgspec.Struct):
    dtype: str
    shape: tuple[_Size, ...]
    data_offsets: tuple[_Size, _Size]


@dataclass(frozen=True)
class TensorEntry:
    """Where one tensor lies: `begin` and `end` are byte offsets in its shard file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    shard: Path
    begin: int
    end: int

    @property
    def num_bytes(self) -> int:
        """Bytes on disk."""
        return self.end - self.begin

    @property
    def num_elements(self) -> int:
        """Elements as stored; a packed tensor's element is a byte."""
        return self.num_bytes // ITEM_BYTES[self.dtype]


def has_weights(folder: Path) -> bool:
    """Whether a folder holds any shard, or an index that promises some."""
    return (folder / INDEX_NAME).exists() or any(folder.glob("*.safetensors"))


class Checkpoint:
    """All tensors of a checkpoint folder by name; data is only touched by `copy`.

    Raises:
        CheckpointError: no weights, a shard that is missing, truncated or has a broken header, or an
            index that contradicts the shards.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries: dict[str, TensorEntry] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        self._staging = torch.empty(0, dtype=torch.uint8)
        weight_map = _read_index(folder)
        shards = sorted({folder / shard for shard in weight_map.values()})
        for shard in shards or [_single_shard(folder)]:
            for entry in _read_header(shard):
                # The index decides when two shards hold the same name.
                if weight_map.get(entry.name, shard.name) == shard.name:
                    self.entries[entry.name] = entry
        absent = [f"{name} (in {shard})" for name, shard in weight_map.items() if name not in self.entries]
        if absent:
            raise CheckpointError(
                f"{INDEX_NAME} names tensors that their shards don't hold: {listing(absent)}. "
                f"Download or export {folder} again."
            )

    def copy(self, entry: TensorEntry, target: Tensor, progress: Callable[[int], None] | None = None) -> None:
        """Copy a tensor's elements, in order, into `target`, converting to its dtype.

        Args:
            entry: a tensor of this checkpoint.
            target: a contiguous tensor of as many elements.
            progress: called with the number of bytes read since its last call.
        """
        flat, item = target.view(-1), ITEM_BYTES[entry.dtype]
        for begin in range(0, entry.num_bytes, STAGING_BYTES):
            chunk = self.read(entry, begin, min(STAGING_BYTES, entry.num_bytes - begin))
            first = begin // item
            flat[first : first + len(chunk)].copy_(chunk)
            if progress is not None:
                progress(chunk.nbytes)

    def read(self, entry: TensorEntry, begin: int, size: int) -> Tensor:
        """Elements of a tensor as stored, flat; the next `read` overwrites them.

        Args:
            entry: a tensor of this checkpoint.
            begin: the first byte within the tensor.
            size: bytes; grows the staging buffer where it is too small.
        """
        if self._staging.numel() < size:
            self._staging = torch.empty(max(size, STAGING_BYTES), dtype=torch.uint8)
        chunk = self._staging[:size]
        if size:  # an empty tensor may lie at the end of a file
            mapped = self._map(entry.shard)
            chunk.numpy()[:] = np.frombuffer(mapped, dtype=np.uint8, count=size, offset=entry.begin + begin)
            _give_back(mapped, entry.begin + begin, size)
        return chunk.view(DTYPES[entry.dtype])

    def close(self) -> None:
        """Unmap all shards."""
        for mapped in self._maps.values():
            mapped.close()
        self._maps.clear()
        self._staging = torch.empty(0, dtype=torch.uint8)

    def _map(self, shard: Path) -> mmap.mmap:
        if shard not in self._maps:
            with _open(shard) as file:
                self._maps[shard] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return self._maps[shard]


def _give_back(mapped: mmap.mmap, begin: int, size: int) -> None:
    """Drop whole pages that were read from this process's resident memory."""
    if hasattr(mmap, "MADV_DONTNEED"):
        start = begin // mmap.PAGESIZE * mmap.PAGESIZE
        mapped.madvise(mmap.MADV_DONTNEED, start, begin + size - start)


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except OSError as error:
        raise CheckpointError(f"Shard {path} can't be read: {error.strerror}.") from None


def _read_index(folder: Path) -> dict[str, str]:
    """Tensor name -> shard file name; empty when the folder has no index."""
    path = folder / INDEX_NAME
    if not path.exists():
        return {}
    try:
        weight_map = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])["weight_map"]
        shards = msgspec.json.decode(weight_map, type=dict[str, str])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, KeyError, OSError) as error:
        raise CheckpointError(
            f"{path} is broken: {error}. It must be JSON with a weight_map from tensor names to shard files."
        ) from None
    foreign = sorted({shard for shard in shards.values() if Path(shard).name != shard})
    if foreign or not shards:
        raise CheckpointError(
            f"{path} must name shard files of its own folder. Given: {foreign[:3] or 'none'}."
        )
    missing = sorted(shard for shard in set(shards.values()) if not (folder / shard).is_file())
    if missing:
        raise CheckpointError(
            f"{folder} lacks shards that {INDEX_NAME} names (download them again): {listing(missing)}"
        )
    return shards


def _single_shard(folder: Path) -> Path:
    path = folder / SINGLE_NAME
    if path.is_file():
        return path
    others = sorted(other.name for other in folder.glob("*.safetensors"))
    has = f"It has {', '.join(others[:3])} but no index" if others else "It has no *.safetensors at all"
    raise CheckpointError(f"{folder} must hold {SINGLE_NAME}, or shards with {INDEX_NAME}. {has}.")


def _read_header(shard: Path) -> list[TensorEntry]:
    size = shard.stat().st_size
    with _open(shard) as file:
        prefix = file.read(8)
        length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
        if not 2 <= length <= min(MAX_HEADER_BYTES, size - 8):
            raise CheckpointError(
                f"Shard {shard} is not a safetensors file or is cut short: its header length reads {length}, "
                f"the file has {size} bytes. Download it again."
            )
        raw = file.read(length)
    try:
        header = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        entries = [_entry(shard, 8 + length, name, fields) for name, fields in header.items()]
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CheckpointError(f"Shard {shard} has a broken header: {error}. Download it again.") from None
    _check_ranges(shard, 8 + length, size, entries)
    return entries


def _entry(shard: Path, data_begin: int, name: str, raw: msgspec.Raw) -> TensorEntry:
    fields = msgspec.json.decode(raw, type=_HeaderEntry)
    if fields.dtype not in DTYPES:
        raise ValueError(f"{name} has dtype {fields.dtype!r}, known are {', '.join(DTYPES)}")
    begin, end = fields.data_offsets
    wanted = math.prod(fields.shape) * ITEM_BYTES[fields.dtype]
    if end - begin != wanted:
        raise ValueError(
            f"{name} of shape {fields.shape} in {fields.dtype} needs {wanted} bytes. Given: {end - begin}"
        )
    return TensorEntry(name, fields.dtype, fields.shape, shard, data_begin + begin, data_begin + end)


def _check_ranges(shard: Path, data_begin: int, size: int, entries: list[TensorEntry]) -> None:
    """The tensors must fill the rest of the file without holes or overlaps."""
    position = data_begin
    for entry in sorted(entries, key=lambda entry: (entry.begin, entry.end)):
        if entry.begin != position:
            raise CheckpointError(
                f"Shard {shard} has a broken header: {entry.name} starts at byte {entry.begin}, "
                f"the tensor before it ends at {position}. Download it again."
            )
        position = entry.end
    if position != size:
        what = "is cut short" if size < position else "is longer than its header says"
        raise CheckpointError(
            f"Shard {shard} {what}: it has {size} bytes, its header needs {position}. Download it again."
        )
