"""Descriptions of hardware: what one device can do at best, and what share of that is assumed to be reached.

Each is a JSON file under ``milepost/assets/hardware``, with its sources and their date; a user's own file has
the same fields. Figures are of one device, without sparsity, bandwidths of one direction. Prices are no part
of it: whoever plans gives one.
"""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path

import msgspec

from milepost.error_text import nearest
from milepost.errors import ConfigError

__all__ = ["Efficiency", "Hardware", "PeakFlops", "find_hardware", "hardware_names", "is_path", "read_json"]

_FOLDER = Path(__file__).parents[2] / "assets" / "hardware"
_VENDORS = ("nvidia", "amd", "instinct", "huawei")
"""What may stand before a name, in this order."""


_RANGES = (
    ("peak_flops.", 1e6, 1e21),
    ("efficiency.", 1e-4, 1.0),
    ("_bytes_per_second", 1e3, 1e18),
    ("memory_bytes", 1e6, 1e18),
    ("_seconds", 1e-12, 1e2),
    ("_watts", 1e-3, 1e9),
    ("", 1, 1e9),
)
"""(part of a figure's name, least, most), the first that fits: generous, so that a slip of units is told."""


class PeakFlops(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Peak FLOP/s of dense matrix products by the operands' dtype; None where there is no such unit."""

    bf16: float
    fp8: float | None = None
    fp4: float | None = None

    def of_experts(self, bytes_per_parameter: float) -> tuple[str, float]:
        """Dtype and peak of the products with routed experts whose parameters take so many bytes.

        MXFP4 weights with MXFP8 activations (as K3 was trained) run at the FP8 rate; without FP4 units they
        are unpacked to bf16. FP8 weights run at the FP8 rate.
        """
        unpacked = bytes_per_parameter >= 2.0 or (bytes_per_parameter < 1.0 and self.fp4 is None)
        return ("bf16", self.bf16) if unpacked or self.fp8 is None else ("fp8", self.fp8)


class Efficiency(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Shares of the peak that are reached, 0 < share <= 1.

    The defaults of experts, cache and network are fitted to times of Kimi K3 on GB300 (see
    `milepost.sim.cost.fitting` and docs/cost-model.md); elsewhere, and the others anywhere, they are
    assumptions.

    Attributes:
        compute: of the FLOP/s, in matrix products with weights that every token takes.
        experts: of the FLOP/s, in the grouped products with routed experts, of few and uneven tokens each.
        attention: of the FLOP/s, in attention, whose softmax waits between two products.
        recurrence: of the FLOP/s, in the chunked KDA recurrence, whose products are small and in order.
        memory: of the memory bandwidth.
        cache: of the memory bandwidth, in attention, which reads cached rows.
        network: of the interconnect's bandwidth.
    """

    compute: float = 0.7
    experts: float = 0.26
    attention: float = 0.5
    recurrence: float = 0.25
    memory: float = 0.8
    cache: float = 0.53
    network: float = 0.47


class Hardware(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind", tag="hardware"
):
    """One device and its links.

    Attributes:
        name: how it is asked for.
        aliases: other words for it, in lower case with hyphens.
        title: what it is.
        peak_flops: FLOP/s by dtype.
        memory_kind: such as "HBM3e"; "" where nobody says.
        memory_bytes: of the device, as its sheet says, a GB read as 1e9 bytes.
        reported_memory_bytes: of the device, as its driver says, where that is known. Often some 7 % more:
            what a sheet calls GB are GiB.
        memory_bytes_per_second: peak bandwidth.
        interconnect_bytes_per_second: to the others of its domain, of one direction.
        interconnect_latency_seconds: of one collective operation inside the domain.
        domain_devices: devices of one such domain, 1 where there is none.
        node_devices: devices of one host, for reference; a domain may span hosts.
        scale_out_bytes_per_second: beyond the domain, of one direction.
        scale_out_latency_seconds: of one collective operation beyond the domain.
        compute_units: streaming multiprocessors, compute units or cube cores, on which a kernel's blocks run.
        power_watts: the most that the device draws.
        kernel_seconds: from the start of one kernel to that of the next, when both have nothing to do.
        step_seconds: what the host adds to a step.
        efficiency: what share of the peaks is reached.
        sources: where the figures are from.
        date: of the figures, YYYY-MM or YYYY-MM-DD.
        notes: what else a reader must know.

    Raises:
        ConfigError: a figure that is not positive and finite, a share above 1, or one that no device has.
    """

    name: str
    aliases: tuple[str, ...] = ()
    title: str
    peak_flops: PeakFlops
    memory_kind: str = ""
    memory_bytes: int
    reported_memory_bytes: int | None = None
    memory_bytes_per_second: float
    interconnect_bytes_per_second: float
    interconnect_latency_seconds: float
    domain_devices: int
    node_devices: int | None = None
    scale_out_bytes_per_second: float
    scale_out_latency_seconds: float
    compute_units: int | None = None
    power_watts: float | None = None
    kernel_seconds: float
    step_seconds: float
    efficiency: Efficiency = Efficiency()
    sources: tuple[str, ...]
    date: str
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for path, value in _figures(self):
            _check_figure(path, value, self.name)
        if not self.name or not self.sources or not self.date:
            raise ConfigError(f"Hardware {self.name!r} must have a name, sources and a date of its figures.")

    def link(self, ranks: int) -> tuple[float, float]:
        """Peak bytes/s and latency in seconds among so many ranks; beyond a domain of the slower links."""
        bandwidth, latency = self.interconnect_bytes_per_second, self.interconnect_latency_seconds
        if ranks <= self.domain_devices:
            return bandwidth, latency
        return (
            min(bandwidth, self.scale_out_bytes_per_second),
            max(latency, self.scale_out_latency_seconds),
        )


def hardware_names() -> tuple[str, ...]:
    """Names of the descriptions that come with Milepost."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.json")))


def find_hardware(name: str) -> Hardware:
    """A description by its name or an alias, or by the path of a JSON file.

    Case doesn't matter, nor whether words are joined by hyphens, underscores or spaces, nor the vendor's name
    in front: "NVIDIA GB300 NVL72" is "gb300".

    Raises:
        ConfigError: no such name (with the nearest match and the list) or file, or a file that is wrong.
    """
    if is_path(name):
        return _parse(Path(name))
    known = hardware_names()
    asked = _plain(name)
    if asked in known:
        return _shipped(asked)
    aliases = _aliases()
    if asked not in aliases:
        raise ConfigError(
            f"Hardware must be one of {', '.join(known)}, or the path of a JSON file. "
            f"Given: {name!r:.200}.{_nearest(asked, known)}"
        )
    return _shipped(aliases[asked])


def _plain(name: str) -> str:
    """A name in the form of those of files: lower case, hyphens, no vendor."""
    words = "-".join(name.lower().replace("_", " ").replace("-", " ").split())
    for vendor in _VENDORS:
        words = words.removeprefix(f"{vendor}-")
    return words


@cache
def _aliases() -> dict[str, str]:
    return {alias: name for name in hardware_names() for alias in _shipped(name).aliases}


def _nearest(asked: str, known: tuple[str, ...]) -> str:
    """The hint for a name nobody knows; of an alias, what it stands for."""
    return nearest(asked, known) or nearest(asked, _aliases())


@cache
def _shipped(name: str) -> Hardware:
    return _parse(_FOLDER / f"{name}.json")


def is_path(name: str) -> bool:
    """Whether hardware is named by a file."""
    return name.endswith(".json") or Path(name).is_file()


def read_json(path: Path) -> bytes:
    """Content of a file that the user named.

    Raises:
        ConfigError: it can't be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}. Name a JSON file that exists.") from None


def _parse(path: Path) -> Hardware:
    content = read_json(path)
    try:
        return msgspec.json.decode(content, type=Hardware)
    except ConfigError as error:  # a figure that can't be
        raise ConfigError(f"{path}: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is no description of hardware: {error}.") from None


def _figures(hardware: Hardware) -> list[tuple[str, float]]:
    """Every figure of it with its name."""
    found: list[tuple[str, float]] = []
    for prefix, owner in (
        ("", hardware),
        ("peak_flops.", hardware.peak_flops),
        ("efficiency.", hardware.efficiency),
    ):
        for name, value in msgspec.structs.asdict(owner).items():
            if isinstance(value, int | float):
                found.append((prefix + name, value))
    return found


def _check_figure(path: str, value: float, hardware: str) -> None:
    where = f"{path} of hardware {hardware!r}"
    if not 0 < value < math.inf:  # also refuses NaN; an int may be too large for a float
        raise ConfigError(f"{where} must be above 0 and finite. Given: {value}.")
    if path.startswith("efficiency.") and value > 1:
        raise ConfigError(f"{where} must be at most 1. Given: {value}.")
    least, most = next((least, most) for part, least, most in _RANGES if part in path)
    if not least <= value <= most:
        given = f"{value:g}" if value <= 1e300 else "more than 1e300"
        raise ConfigError(f"{where} must be {least:g} to {most:g}. Given: {given}.")
