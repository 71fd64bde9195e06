"""Findings about what is installed: Python, the packages, torch's build, the compiled kernels."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from milepost import __version__
from milepost.cli.doctor.finding import Finding, Level
from milepost.cli.doctor.hardware import vectors

__all__ = ["examine_software"]

_TOPIC = "software"
_SOURCE = Path(__file__).parents[3]
_REQUIREMENT = re.compile(
    r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?:>=\s*([0-9.]+))?[^;]*(?:;.*extra\s*==\s*['\"]([\w-]+)['\"])?"
)

NEEDED = ("", "engine", "server")
"""Groups of packages without which there is no server; "" is of those that are always installed."""
OPTIONAL = {
    "tracing": "traces of requests (--otlp-endpoint)",
    "simulate": "pages, Parquet files and .zst traces of `milepost simulate` and `plan`",
    "ray": "sweeps of `milepost simulate` over a cluster",
}
"""Others, and what they are for."""


def examine_software() -> Iterator[Finding]:
    """Look at what is installed."""
    yield _finding("Milepost", Level.OK, f"{__version__}, in {_SOURCE}")
    yield _finding("Python", Level.OK, f"{platform.python_version()} ({platform.python_implementation()})")
    wanted = _requirements()
    tested = _tested_versions()
    for group in NEEDED:
        yield from _needed(group, wanted.get(group, {}), tested)
    for group, purpose in OPTIONAL.items():
        if group in wanted:
            yield _optional(group, purpose, wanted[group])
    yield from _torch_build()
    yield from _kernels()


def _requirements() -> dict[str, dict[str, str]]:
    """By group, packages and the oldest version of each that will do, as the installation declares them."""
    try:
        declared = importlib.metadata.requires("milepost") or []
    except importlib.metadata.PackageNotFoundError:
        return _requirements_of_source()
    groups: dict[str, dict[str, str]] = {}
    for text in declared:
        if match := _REQUIREMENT.match(text):
            groups.setdefault(match[3] or "", {})[match[1]] = match[2] or ""
    return groups


def _requirements_of_source() -> dict[str, dict[str, str]]:
    """The same where the source tree is used without being installed."""
    path = _SOURCE / "pyproject.toml"
    if not path.is_file():
        return {}
    project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
    groups = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        group: {match[1]: match[2] or "" for text in texts if (match := _REQUIREMENT.match(text))}
        for group, texts in groups.items()
    }


def _tested_versions() -> dict[str, str]:
    """What constraints.txt pins, by lower-case names; empty without a source tree."""
    path = _SOURCE / "constraints.txt"
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if "==" in line and not line.startswith("#")]
    return {_folded(name): version for name, version in pairs}


def _needed(group: str, packages: Mapping[str, str], tested: Mapping[str, str]) -> Iterator[Finding]:
    name = f"packages of [{group}]" if group else "packages"
    versions = {package: _version(package) for package in packages}
    missing = [package for package, version in versions.items() if version is None]
    old = [
        f"{package} {version} (at least {packages[package]})"
        for package, version in versions.items()
        if version is not None and _number(version) < _number(packages[package])
    ]
    if missing or old:
        extra = f'".[{group}]"' if group else "."
        advice = f"In Milepost's source folder: pip install -c constraints.txt -e {extra}"
        if "torch" in missing:
            first = f"pip install torch{'==' * ('torch' in tested)}{tested.get('torch', '')}"
            advice = f"First and alone: {first}. {advice.replace('In', 'Then, in', 1)}"
        parts = ([f"missing: {', '.join(missing)}"] if missing else []) + (
            [f"too old: {', '.join(old)}"] if old else []
        )
        yield _finding(name, Level.PROBLEM, "; ".join(parts), advice)
        return
    other = [
        f"{package} {version} (tested: {tested[_folded(package)]})"
        for package, version in versions.items()
        if version is not None and _folded(package) in tested and _public(version) != tested[_folded(package)]
    ]
    if other:
        advice = (
            "Nothing, while all works; `pip install -c constraints.txt` gives the versions that are tested."
        )
        yield _finding(name, Level.NOTE, f"others than tested: {', '.join(other)}", advice)
    else:
        yield _finding(name, Level.OK, f"{len(packages)} there" + (", as tested" if tested else ""))


def _optional(group: str, purpose: str, packages: Mapping[str, str]) -> Finding:
    missing = [package for package in packages if _version(package) is None]
    if not missing:
        return _finding(f"optional [{group}]", Level.OK, purpose)
    advice = f'Should you want {purpose}: pip install -c constraints.txt -e ".[{group}]"'
    return _finding(f"optional [{group}]", Level.NOTE, f"not there: {', '.join(missing)}", advice)


def _torch_build() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        return  # the packages' finding says so
    import torch

    build = torch.version.cuda or torch.version.hip
    if build:
        advice = "It works; only the processor is used, and the CPU build is far smaller to install."
        yield _finding("torch", Level.NOTE, f"{torch.__version__}, a build for GPUs", advice)
    else:
        yield _finding("torch", Level.OK, f"{torch.__version__}, a build for processors")


def _kernels() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        return
    from milepost.kernels.native import HOW_TO_BUILD, available, native, why_not_available

    if not available():
        found = f"the reference kernels, many times slower: {why_not_available()}"
        yield _finding("kernels", Level.WARNING, found.rstrip("."), HOW_TO_BUILD)
        return
    target, best = native.target(), vectors()
    order = ("avx512", "avx2", "baseline")
    if target in order and order.index(target) > order.index(best):
        found = f"compiled, running {target}; this processor has {best}"
        yield _finding("kernels", Level.WARNING, found, f"They were built for fewer. {HOW_TO_BUILD}")
    else:
        yield _finding("kernels", Level.OK, f"compiled, running {target}")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _number(version: str) -> tuple[int, ...]:
    """A version's leading numbers, for comparison: ``2.13.0+cpu`` is (2, 13, 0)."""
    match = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(map(int, match[0].split("."))) if match else ()


def _public(version: str) -> str:
    """Without the local build's name."""
    return version.partition("+")[0]


def _folded(package: str) -> str:
    return package.replace("_", "-").lower()


def _finding(name: str, level: Level, found: str, advice: str = "") -> Finding:
    return Finding(topic=_TOPIC, name=name, level=level, found=found, advice=advice)
