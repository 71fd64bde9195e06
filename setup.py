"""Builds the CPU kernels, `milepost.kernels.native`; everything else about the package is in pyproject.toml.

Kernels are compiled once for each target that the compiler knows, and chosen by what the machine has when
they are loaded. Where there is no C++ compiler the package is installed without them, and runs its
reference kernels.
"""

from __future__ import annotations

import os
import platform
import sysconfig
from pathlib import Path
from typing import Any

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension, build_ext
from setuptools import setup

SOURCES = Path("milepost/kernels/native/src")

# Only x86-64 needs more than one: on other machines the compiler's default has their vectors.
X86_TARGETS = {
    "avx512": ["-march=x86-64-v4", "-mprefer-vector-width=512"],
    "avx2": ["-march=x86-64-v3"],
}


def targets() -> dict[str, list[str]]:
    """Flags of each target; MILEPOST_TARGETS="avx2 ..." builds only some, for quick turns at development."""
    known = X86_TARGETS if platform.machine() in {"x86_64", "AMD64"} and not _for_arm_too() else {}
    wanted = os.environ.get("MILEPOST_TARGETS", " ".join(known)).split()
    return {name: known[name] for name in wanted if name in known}


def _for_arm_too() -> bool:
    """Whether one call of the compiler makes code for ARM as well, as some of macOS's Pythons ask for."""
    flags = os.environ.get("ARCHFLAGS") or f"{sysconfig.get_config_var('CFLAGS')}"
    return "-arch arm64" in flags


class BuildKernels(build_ext):
    """Compiles each target's file with the target's flags."""

    def finalize_options(self) -> None:
        """Always compile: a file's age doesn't tell for which targets it was built."""
        super().finalize_options()
        self.force = True

    def build_extensions(self) -> None:
        """Build the extension."""
        compile_one = self.compiler._compile  # noqa: SLF001 - the only way to per-file flags that setuptools has
        flags = targets()

        def with_target_flags(
            obj: str, source: str, ext: str, cc_args: list[str], postargs: list[str], pp_opts: list[str]
        ) -> None:
            own = flags.get(Path(source).stem, []) if Path(source).parent.name == "targets" else []
            compile_one(obj, source, ext, cc_args, [*postargs, *own], pp_opts)

        self.compiler._compile = with_target_flags  # noqa: SLF001
        super().build_extensions()


def kernels() -> Any:  # noqa: ANN401 - pybind11 ships no types here
    """The extension module."""
    built = [*targets(), "baseline"]
    sources = sorted(str(path) for path in SOURCES.glob("*.cpp"))
    sources += [str(SOURCES / "targets" / f"{name}.cpp") for name in built]
    return Pybind11Extension(
        "milepost.kernels.native._native",
        sources,
        depends=[str(path) for path in SOURCES.rglob("*.*")],
        cxx_std=20,
        define_macros=[(f"MILEPOST_HAS_{name.upper()}", None) for name in built],
        extra_compile_args=["-O3", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Wno-psabi"],
        extra_link_args=["-pthread"],
        optional=True,
    )


ParallelCompile("MILEPOST_BUILD_JOBS", default=0).install()
setup(ext_modules=[kernels()], cmdclass={"build_ext": BuildKernels})
