"""How often each expert is chosen: evenly, by Zipf's law, or as a router was seen to choose."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from milepost.error_text import printable
from milepost.errors import ConfigError

__all__ = ["ExpertLoads", "chosen_shares", "read_loads"]

_ZIPF = re.compile(r"zipf\(\s*([^()]*?)\s*\)", re.IGNORECASE)
MOST_EXPONENT = 10.0
MOST_COUNT = 1e18
MOST_FILE_BYTES = 64 * 1024**2

Shares = npt.NDArray[np.float64]


class ExpertLoads(msgspec.Struct, frozen=True, kw_only=True):
    """Relative loads of the experts.

    Attributes:
        name: of the distribution or the file.
        layers: [layers, experts]: relative loads; one row where all layers are alike.
        ordered: whether an expert's place in a row is its number; else which one is hot is not known.
    """

    name: str
    layers: Shares
    ordered: bool

    @property
    def uniform(self) -> bool:
        """Whether all experts are chosen equally often."""
        return bool((self.layers == self.layers[:, :1]).all())


def read_loads(text: str, num_experts: int, moe_layers: int) -> ExpertLoads:
    """Loads by "uniform", "zipf(S)" (the expert of rank i is chosen in proportion to i^-S) or a file.

    Args:
        text: what was given.
        num_experts: of a layer of the model.
        moe_layers: of the model; a file may have fewer rows, not more.

    Raises:
        ConfigError: none of them, or a file that holds no such counts.
    """
    if text.lower() == "uniform":
        return ExpertLoads(name="uniform", layers=np.ones((1, num_experts)), ordered=False)
    if match := _ZIPF.fullmatch(text):
        exponent = _exponent(match[1], text)
        ranks = np.arange(1, num_experts + 1, dtype=np.float64)
        return ExpertLoads(name=f"zipf({exponent:g})", layers=(ranks**-exponent)[None], ordered=False)
    path = Path(text)
    if not text or len(text) > 4096 or "\0" in text or not path.is_file():
        raise ConfigError(
            "load must be uniform, zipf(S) such as zipf(0.5), or the path of a JSON or CSV file with counts. "
            f"Given: {text!r:.200}."
        )
    rows = _read_rows(path)
    _check_rows(rows, printable(str(path)), num_experts, moe_layers)
    return ExpertLoads(name=printable(path.name), layers=np.array(rows, dtype=np.float64), ordered=True)


def _exponent(number: str, text: str) -> float:
    try:
        exponent = float(number)
    except ValueError:
        exponent = math.nan
    if not 0 <= exponent <= MOST_EXPONENT:  # also refuses NaN
        raise ConfigError(
            f"The S of zipf(S) must be a number from 0 to {MOST_EXPONENT:g}. Given: {text!r:.100}."
        )
    return exponent


def _read_rows(path: Path) -> list[list[float]]:
    """Rows of numbers of a file: JSON, else CSV."""
    name = printable(str(path))
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise ConfigError(
                f"{name} must have at most {MOST_FILE_BYTES:,} bytes. Given: {path.stat().st_size:,}."
            )
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{name} can't be read: {error.strerror}.") from None
    if content.lstrip()[:1] in (b"[", b"{"):
        return _json_rows(content, name)
    return _csv_rows(content, name)


def _json_rows(content: bytes, name: str) -> list[list[float]]:
    try:
        found: Any = msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ConfigError(f"{name} is not valid JSON: {error}.") from None
    if not isinstance(found, list) or not found:
        raise ConfigError(f"{name} must hold a list of counts, one an expert, or one such list a layer.")
    rows = found if all(isinstance(row, list) for row in found) else [found]
    for row in rows:
        for one in row:
            if isinstance(one, bool) or not isinstance(one, int | float):
                raise ConfigError(f"{name} must hold numbers alone. Given: {one!r:.60}.")
    return [[_as_float(one) for one in row] for row in rows]


def _as_float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf


def _csv_rows(content: bytes, name: str) -> list[list[float]]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is neither JSON nor CSV: it is not UTF-8 text.") from None
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise ConfigError(f"{name} must hold counts, one an expert. Given: an empty file.")
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            rows.append([float(cell) for cell in line.split(",")])
        except ValueError:
            raise ConfigError(
                f"{name} must hold counts alone, with commas between them, without a heading. "
                f"Given in line {number}: {line!r:.60}."
            ) from None
    # One count a line is one layer, not as many layers with one expert.
    return [[row[0] for row in rows]] if all(len(row) == 1 for row in rows) else rows


def _check_rows(rows: list[list[float]], name: str, num_experts: int, moe_layers: int) -> None:
    if len(rows) > moe_layers:
        raise ConfigError(
            f"{name} must have one row for all layers or one a layer, at most {moe_layers}. "
            f"Given: {len(rows)}."
        )
    for number, row in enumerate(rows, 1):
        where = f"{name}, row {number}," if len(rows) > 1 else name
        if len(row) != num_experts:
            raise ConfigError(f"{where} must have {num_experts} counts, one an expert. Given: {len(row)}.")
        bad = next((one for one in row if not 0 <= one <= MOST_COUNT), None)  # also finds NaN
        if bad is not None:
            raise ConfigError(f"{where} must hold counts from 0 to {MOST_COUNT:g}. Given: {bad:g}.")
        if not any(row):
            raise ConfigError(f"{where} must have a count above 0. Given: zeros alone.")


def chosen_shares(loads: Shares, top_k: int) -> Shares:
    """Probability that a token takes each expert: in proportion to its load, at most 1; they sum to `top_k`.

    Args:
        loads: [experts], relative.
        top_k: experts a token.
    """
    shares = np.zeros(len(loads))
    loads = loads / loads.max()
    certain = np.zeros(len(loads), dtype=bool)
    while True:
        rest = top_k - int(certain.sum())
        free = loads[~certain].sum()
        if free <= 0:  # fewer experts with a load than a token takes
            shares[~certain] = rest / max(1, int((~certain).sum()))
            break
        shares = np.ones(len(loads))
        shares[~certain] = loads[~certain] / free * rest  # in this order: rest / free may overflow
        beyond = shares > 1.0
        if not beyond.any():
            break
        certain |= beyond
    return np.minimum(np.where(certain, 1.0, shares), 1.0)
