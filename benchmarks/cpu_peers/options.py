"""What the commands that compare with peers are given, and where the peers' parts lie."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from benchmarks.subjects import REPOSITORY
from milepost.errors import ConfigError

__all__ = ["INSTALL", "THREADS", "Peers", "environment"]

THREADS = 2
"""Of every engine."""

INSTALL = "sh benchmarks/cpu_peers/install.sh"


def environment() -> dict[str, str]:
    """Variables of a process that is measured: this repository, and no limit on threads from outside."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("OMP_")}
    return inherited | {"PYTHONPATH": str(REPOSITORY)}


@dataclass(frozen=True)
class Peers:
    """The peers' environment, as `INSTALL` makes it.

    Attributes:
        folder: the environment's root.
        quick: fewer rounds, fewer cases.
        only: part of the name of the cases to run, such as "kimi_k3, float32" or "int8"; "" for all.
    """

    folder: Path
    quick: bool = False
    only: str = ""

    def wants(self, subject: str, form: str) -> bool:
        """Whether a subject in a format is one of the cases to run."""
        return self.only in f"{subject}, {form}"

    @property
    def python(self) -> Path:
        """Its interpreter, which has the peers."""
        return self._there("bin/python")

    @property
    def llama_server(self) -> Path:
        """llama.cpp's server."""
        return self._there("bin/llama-server")

    @property
    def llama_source(self) -> Path:
        """llama.cpp's source tree, for its converter."""
        return self._there("llama.cpp")

    @property
    def rounds(self) -> int:
        """How often each side has its turn, where a turn takes a second or less."""
        return 3 if self.quick else 5

    @property
    def long_rounds(self) -> int:
        """The same where it takes seconds."""
        return 2 if self.quick else 3

    def _there(self, name: str) -> Path:
        # Not resolved: an environment's interpreter is a link, and the link is what says which environment.
        path = self.folder.absolute() / name
        if not path.exists():
            raise ConfigError(f"The peers' environment lacks {path}. Make it with: {INSTALL} {self.folder}")
        return path
