"""What the commands that compare with peers are given, and where the peers' parts lie."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from milepost.errors import ConfigError

__all__ = ["INSTALL", "THREADS", "Peers"]

THREADS = 2
"""Of every engine."""

INSTALL = "sh benchmarks/cpu_peers/install.sh"


@dataclass(frozen=True)
class Peers:
    """The peers' environment, as `INSTALL` makes it.

    Attributes:
        folder: the environment's root.
        quick: fewer rounds, fewer formats.
    """

    folder: Path
    quick: bool = False

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
        """How often each side has its turn."""
        return 2 if self.quick else 3

    def _there(self, name: str) -> Path:
        # Not resolved: an environment's interpreter is a link, and the link is what says which environment.
        path = self.folder.absolute() / name
        if not path.exists():
            raise ConfigError(f"The peers' environment lacks {path}. Make it with: {INSTALL} {self.folder}")
        return path
