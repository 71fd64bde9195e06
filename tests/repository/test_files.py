"""Habits that a machine can watch: file sizes, no paths of anyone's machine, no junk drawers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.repository.paths import ROOT, text_files, tracked_files

MAX_LINES = 450
MAX_FILE_BYTES = 16 * 1024 * 1024
JUNK_DRAWERS = {"utils", "util", "common", "helpers", "helper", "misc"}

# Home folders and the like: what only exists on the machine where it was typed. Paths that every Linux has
# (/proc, /dev, /usr/bin/env, /tmp) are fine.
SOMEONES_PATH = re.compile(r"(?<![\w.:/}-])/(?:home|Users|root|work|opt|mnt|media|srv|data)/[\w.-]+")


def package_files() -> list[Path]:
    return [
        path for path in tracked_files() if path.suffix == ".py" and path.is_relative_to(ROOT / "milepost")
    ]


def compiled_files() -> list[Path]:
    """The C++ of the kernels."""
    suffixes = {".cpp", ".h", ".inl"}
    return [path for path in tracked_files() if path.suffix in suffixes]


def test_modules_stay_short() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in [*package_files(), *compiled_files()]
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert not long, f"split these at an idea that you can name; at most {MAX_LINES} lines: {long}"


def test_compiled_files_lie_where_the_build_finds_them_and_hold_no_tabs() -> None:
    sources = ROOT / "milepost" / "kernels" / "native" / "src"
    files = compiled_files()
    assert len(files) > 20
    assert not [path for path in files if not path.is_relative_to(sources)]
    assert not [path for path in files if "\t" in path.read_text(encoding="utf-8")]


def test_no_junk_drawers() -> None:
    drawers = [
        str(path.relative_to(ROOT))
        for path in [*package_files(), *compiled_files()]
        if JUNK_DRAWERS & {path.stem, path.parent.name}
    ]
    assert not drawers, "name the idea that the module holds"


def test_no_file_is_huge() -> None:
    huge = [str(path.relative_to(ROOT)) for path in tracked_files() if path.stat().st_size > MAX_FILE_BYTES]
    assert not huge


@pytest.mark.parametrize("text", ["open('/home/ann/x')", "see /work/notes.md", "cd /root/build"])
def test_someones_path_is_recognised(text: str) -> None:
    assert SOMEONES_PATH.search(text)


@pytest.mark.parametrize("text", ["/v1/models", "https://example.org/data/x", "a/data/b", "/proc/meminfo"])
def test_other_paths_are_not(text: str) -> None:
    assert not SOMEONES_PATH.search(text)


def test_no_paths_of_someones_machine() -> None:
    found = []
    for path in text_files():
        if path == Path(__file__):
            continue
        lines = path.read_text(encoding="utf-8").splitlines()
        found += [
            f"{path.relative_to(ROOT)}:{i}" for i, line in enumerate(lines, 1) if SOMEONES_PATH.search(line)
        ]
    assert not found
