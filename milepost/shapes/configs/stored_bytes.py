"""Bytes that a checkpoint stores a parameter in, by the name of the matrix, from its quantisation's settings.

    fp8                  one byte; with ``weight_block_size`` a float32 scale a block
    modelopt             FP8: one byte; NVFP4: half a byte and a byte of scale a group; or a table of matrices
    compressed-tensors   groups of 4-bit or 8-bit integers with a bf16 scale, MXFP4, NVFP4, fp8

What a format leaves alone it names in a list, in one of several spellings: a matrix, a part of its name, a
name with ``*``, or ``re:`` and a pattern. Norms, convolutions, routers, embeddings and, unless a table names
it, the output head count as bf16.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from milepost.error_text import as_json
from milepost.json_fields import JsonFields
from milepost.shapes.shape import BF16_BYTES

__all__ = ["FORMATS", "StoredBytes", "read_stored_bytes"]

FORMATS = ("fp8", "modelopt", "compressed-tensors")
"""Values of ``quant_method`` that are known."""

FP8_BYTES = 1.0
FLOAT32_BYTES = 4
NVFP4_GROUP = 16

# What stands before a layer's name differs by exporter and says nothing.
_PREFIXES = ("model.language_model.", "language_model.model.", "language_model.", "model.", "backbone.")

# A pattern may not take time that grows out of hand with the length of a name.
_PLAIN_PATTERN = re.compile(r"(?:[\w$^-]|\\[.d]\+?|\.\*?|\((?:\?:)?[\w|.-]+\))*")
_MAX_PATTERN = 200
_MAX_STARS = 4


class StoredBytes:
    """Bytes a parameter of each matrix of a checkpoint.

    Args:
        usual: of a matrix that nothing else is said of.
        kept: names, or parts of names, of what stays bf16; ``*`` and ``re:`` as above.
        named: of matrices, or of all below a name, that have bytes of their own.
    """

    def __init__(
        self,
        usual: float = BF16_BYTES,
        kept: Sequence[str] = (),
        named: Mapping[str, float] | None = None,
    ) -> None:
        self._usual = usual
        self._named = {_short(name): size for name, size in (named or {}).items()}
        self._kept_names = {_short(name) for name in kept if not name.startswith("re:") and "*" not in name}
        globs = [f"*.{_short(name)}.*" for name in kept if not name.startswith("re:") and "*" in name]
        patterns = [name.removeprefix("re:") for name in kept if name.startswith("re:")]
        self._kept_globs = _any_of(fnmatch.translate(glob) for glob in globs)
        self._kept_patterns = _any_of(patterns)

    def of(self, name: str) -> float:
        """Bytes a parameter of one matrix, such as ``layers.3.mlp.up_proj``."""
        if self._kept(name):
            return BF16_BYTES
        parts = name.split(".")
        below = (".".join(parts[:count]) for count in range(len(parts), 0, -1))
        return next((self._named[part] for part in below if part in self._named), self._usual)

    def mean(self, layers: Sequence[int], matrices: Mapping[str, int], total: int) -> float:
        """Bytes a parameter, over the same part of several layers.

        Args:
            layers: numbers of the layers.
            matrices: parameters by name within a layer.
            total: parameters of the part in one layer; what is in none of `matrices` is bf16.
        """
        if not layers or not total or (self._usual == BF16_BYTES and not self._named):
            return BF16_BYTES
        saved = sum(
            count * (BF16_BYTES - self.of(f"layers.{layer}.{name}"))
            for layer in layers
            for name, count in matrices.items()
        )
        return BF16_BYTES - saved / (total * len(layers))

    def of_head(self) -> float:
        """Bytes a parameter of the output head: bf16 unless it is named."""
        return self._named.get("lm_head", BF16_BYTES)

    def _kept(self, name: str) -> bool:
        if self._kept_names:
            parts = name.split(".")
            runs = (
                ".".join(parts[start:end])
                for start in range(len(parts))
                for end in range(start + 1, len(parts) + 1)
            )
            if any(run in self._kept_names for run in runs):
                return True
        if self._kept_globs is not None and self._kept_globs(f".{name}."):
            return True
        return self._kept_patterns is not None and bool(self._kept_patterns(f"model.{name}"))


def read_stored_bytes(quantization: JsonFields) -> StoredBytes:
    """Read ``quantization_config``; what is not understood is noted as a problem.

    Args:
        quantization: the section, empty for an unquantised checkpoint.
    """
    if not quantization.names:
        return StoredBytes()
    method = quantization.choice("quant_method", FORMATS)
    if method == "modelopt":
        return _modelopt(quantization)
    if method == "compressed-tensors":
        return StoredBytes(_group_bytes(quantization), _names(quantization, "ignore"))
    return StoredBytes(_block_bytes(quantization), _names(quantization, "modules_to_not_convert"))


def _block_bytes(quantization: JsonFields) -> float:
    """fp8, with a float32 scale a block where there are blocks."""
    block = quantization.optional("weight_block_size")
    if block is None:
        return FP8_BYTES
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int and n > 0 for n in block):
        quantization.problem("weight_block_size", f"must be two numbers above 0. Given: {as_json(block)}")
        return FP8_BYTES
    area: int = block[0] * block[1]
    return FP8_BYTES + FLOAT32_BYTES / area


def _modelopt(quantization: JsonFields) -> StoredBytes:
    kept = _names(quantization, "ignore", "exclude_modules")
    group = quantization.integer("group_size", default=NVFP4_GROUP)
    algorithm = quantization.choice("quant_algo", ("FP8", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"))
    if algorithm != "MIXED_PRECISION":
        return StoredBytes(_algorithm_bytes(algorithm, group), kept)
    table = quantization.section("quantized_layers")
    named = {}
    for name in table.names:
        entry = table.section(name)
        known = ("FP8", "NVFP4", "W4A16_NVFP4")
        named[name] = _algorithm_bytes(
            entry.choice("quant_algo", known), entry.integer("group_size", default=NVFP4_GROUP)
        )
    return StoredBytes(named=named, kept=kept)


def _algorithm_bytes(algorithm: str, group: int) -> float:
    return FP8_BYTES if algorithm == "FP8" else 0.5 + 1 / group


def _group_bytes(quantization: JsonFields) -> float:
    """compressed-tensors: one group of settings for every linear layer that is not left alone."""
    form = quantization.choice(
        "format", ("pack-quantized", "mxfp4-pack-quantized", "nvfp4-pack-quantized", "float-quantized")
    )
    groups = quantization.section("config_groups")
    if len(groups.names) != 1:
        quantization.problem("config_groups", f"must be one group. Given: {len(groups.names)}")
        return BF16_BYTES
    group = groups.section(groups.names[0])
    targets = group.optional("targets")
    if targets != ["Linear"]:
        group.problem("targets", f'must be ["Linear"]. Given: {as_json(targets)}')
    weights = group.section("weights")
    bits = weights.integer("num_bits", maximum=8)
    size = weights.integer("group_size", default=0, minimum=-1)
    if form == "float-quantized":
        return bits / 8
    if form == "pack-quantized":
        if not weights.boolean("symmetric", default=True):
            weights.problem("symmetric", "only true is known: zero points would add to the sizes")
        return bits / 8 + (BF16_BYTES / size if size > 0 else 0.0)
    return bits / 8 + 1 / max(size, 1)  # a byte of scale a group


def _names(fields: JsonFields, *keys: str) -> list[str]:
    """Names of what stays bf16; a pattern that could run for long is noted as a problem."""
    value = fields.optional(*keys)
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        fields.problem(keys[0], f"must be a list of names. Given: {as_json(value)}")
        return []
    for name in value:
        pattern = name.removeprefix("re:")
        long = len(pattern) > _MAX_PATTERN or pattern.count("*") > _MAX_STARS
        if long or (pattern != name and not _PLAIN_PATTERN.fullmatch(pattern)):
            fields.problem(keys[0], f"holds a pattern that is not known. Given: {as_json(name)}")
            return []
    return list(value)


def _short(name: str) -> str:
    prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), "")
    return name.removeprefix(prefix)


def _any_of(patterns: Iterable[str]) -> Callable[[str], object] | None:
    """A test whether any of some patterns matches, None without patterns."""
    joined = "|".join(f"(?:{pattern})" for pattern in dict.fromkeys(patterns))
    return re.compile(joined).match if joined else None
