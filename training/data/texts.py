"""Prepares the text: Debian's ``python3.11-doc`` (PSF licence) and ``dict-jargon`` (public domain).

Fetch the packages with ``apt-get download python3.11-doc dict-jargon`` and point :func:`documents` at the
folder; nothing is installed. The text itself is not kept in the repository.
"""

import gzip
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

PACKAGES = ("python3.11-doc", "dict-jargon")
_PYTHON_PARTS = ("tutorial", "faq", "howto", "using", "reference", "glossary.rst.txt")
_MAX_CHARACTERS = 40_000


def documents(folder: Path) -> list[str]:
    """All documents of the packages in ``folder``, cleaned, in a fixed order; a missing one gives none."""
    found = []
    dpkg = shutil.which("dpkg-deb")
    if dpkg is None:
        raise FileNotFoundError("dpkg-deb is needed to unpack the texts; it comes with Debian's dpkg")
    with tempfile.TemporaryDirectory() as scratch:
        for package in PACKAGES:
            for archive in sorted(folder.glob(f"{package}_*.deb")):
                subprocess.run([dpkg, "-x", str(archive), scratch], check=True)
        found += _python_pages(Path(scratch) / "usr/share/doc/python3.11/html/_sources")
        found += _jargon_entries(Path(scratch) / "usr/share/dictd/jargon.dict.dz")
    return found


def _python_pages(sources: Path) -> list[str]:
    """The prose parts of the Python documentation, without its heaviest reStructuredText marks."""
    pages = []
    for part in _PYTHON_PARTS:
        path = sources / part
        files = sorted(path.rglob("*.txt")) if path.is_dir() else [path]
        pages += [
            _plain(file.read_text(errors="ignore"))[:_MAX_CHARACTERS] for file in files if file.exists()
        ]
    return pages


def _plain(source: str) -> str:
    """Drop directives, title rules and role names, and keep the words."""
    source = re.sub(r":[a-z:]+:`~?([^`<]+?)(?: <[^`>]*>)?`", r"\1", source)
    source = re.sub(r"``([^`]*)``", r"\1", source)
    lines = [
        line for line in source.split("\n") if not re.match(r"^\s*(\.\. |:[a-z]+:|[=\-*~^#\"]{3,}$)", line)
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _jargon_entries(path: Path) -> list[str]:
    """The Jargon File, one document for every few entries."""
    if not path.exists():
        return []
    text = gzip.decompress(path.read_bytes()).decode(errors="ignore")
    entries = re.split(r"\n(?=\S)", text)
    return ["\n".join(entries[start : start + 8]) for start in range(0, len(entries), 8)]
