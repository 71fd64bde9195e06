"""Write a checkpoint folder in Hugging Face layout: config.json, sharded safetensors and their index.

A folder appears whole or not at all: everything is written to a hidden sibling folder, which is then renamed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from milepost.errors import CheckpointError

__all__ = ["write_checkpoint"]

_INDEX_NAME = "model.safetensors.index.json"


def write_checkpoint(
    folder: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Iterable[tuple[str, Tensor]],
    *,
    shards: int = 1,
    files: Mapping[str, bytes] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a checkpoint folder, whole or not at all.

    The tensors are held in memory until all of them are written, since each file's name says how many there
    are.

    Args:
        folder: where the checkpoint shall lie; its parent is made if need be.
        config: becomes config.json.
        tensors: name and value; stored in the order given, in their own dtype and shape.
        shards: number of safetensors files, of about equal bytes.
        files: other files of the folder by name, such as a tokenizer's.
        overwrite: replace an existing folder (the old one stays until the new one is whole).

    Returns:
        The folder.

    Raises:
        CheckpointError: the folder exists, a name occurs twice, there are fewer tensors than shards, or the
            disk doesn't take it; nothing half-written is left in any of these cases.
    """
    target = Path(folder)
    if target.exists() and not overwrite:
        raise CheckpointError(
            f"{target} exists and is not replaced. Give another folder, or remove this one."
        )
    named = _collect(tensors)
    parts = _split(named, shards)
    total = sum(tensor.nbytes for tensor in named.values())
    with _pending_folder(target, total) as pending:
        _write_shards(pending, parts, total)
        _write_json(pending / "config.json", config)
        for name, content in (files or {}).items():
            (pending / name).write_bytes(content)
    return target


def _collect(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    named: dict[str, Tensor] = {}
    storages: set[int] = set()
    for name, tensor in tensors:
        if name in named:
            raise CheckpointError(f"Two tensors of the checkpoint are named {name}. A name may occur once.")
        plain = tensor.detach().cpu().contiguous()
        # safetensors stores whole storages and refuses shared ones: what is a view of something else is
        # copied.
        storage = plain.untyped_storage()
        if storage.data_ptr() in storages or storage.nbytes() != plain.nbytes:
            plain = plain.clone()
        storages.add(plain.untyped_storage().data_ptr())
        named[name] = plain
    return named


def _split(named: Mapping[str, Tensor], shards: int) -> list[dict[str, Tensor]]:
    """Cut the tensors, in order, into ``shards`` runs of about equal bytes, none of them empty."""
    if not 1 <= shards <= max(1, len(named)):
        raise CheckpointError(
            f"A checkpoint of {len(named)} tensors can have 1 to {len(named)} shards. Given: {shards}."
        )
    total = sum(tensor.nbytes for tensor in named.values())
    parts: list[dict[str, Tensor]] = [{}]
    written = 0
    for position, (name, tensor) in enumerate(named.items()):
        tensors_left, parts_left = len(named) - position, shards - len(parts)
        is_full = written >= total * len(parts) / shards
        if parts[-1] and parts_left and (is_full or tensors_left == parts_left):
            parts.append({})
        parts[-1][name] = tensor
        written += tensor.nbytes
    return parts


def _write_shards(folder: Path, parts: list[dict[str, Tensor]], total: int) -> None:
    weight_map: dict[str, str] = {}
    for number, part in enumerate(parts, start=1):
        file_name = f"model-{number:05d}-of-{len(parts):05d}.safetensors"
        save_file(part, folder / file_name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(part, file_name))
    _write_json(folder / _INDEX_NAME, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _pending_folder(target: Path, needed: int) -> Iterator[Path]:
    """A hidden sibling of ``target`` that takes its place on success and vanishes on failure."""
    made = [folder for folder in target.parents if not folder.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        pending = Path(tempfile.mkdtemp(prefix=f".{target.name}.writing-", dir=target.parent))
    except OSError as error:
        _remove_empty(made)
        raise CheckpointError(
            f"Can't make a folder beside {target}: {error}. Choose a place that can be written."
        ) from error
    try:
        free = shutil.disk_usage(pending).free
        if needed > free:
            raise CheckpointError(
                f"{target} needs {needed:,} bytes, its disk has {free:,} free. Make room there."
            )
        yield pending
        _replace(pending, target)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"Can't write {target} ({needed:,} bytes of tensors): {error}. Nothing was left there: "
            "make room and try again."
        ) from error
    finally:
        shutil.rmtree(pending, ignore_errors=True)
        _remove_empty(made)


def _remove_empty(folders: list[Path]) -> None:
    """Remove those of `folders`, innermost first, that hold nothing."""
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()


def _replace(pending: Path, target: Path) -> None:
    umask = os.umask(0)
    os.umask(umask)
    # mkdtemp's folders and safetensors' files are private to their owner.
    pending.chmod(0o777 & ~umask)
    for file in pending.iterdir():
        file.chmod(0o666 & ~umask)
    if not target.exists():
        pending.rename(target)
        return
    retired = Path(tempfile.mkdtemp(prefix=f".{target.name}.old-", dir=target.parent))
    target.rename(retired / target.name)
    pending.rename(target)
    shutil.rmtree(retired, ignore_errors=True)
