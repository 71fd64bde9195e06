"""The command line: ``milepost generate``, ``chat``, ``serve``, ``inspect`` and ``export-toy``.

Command modules import the engine inside their functions: ``milepost --help`` must not load torch.
"""

from milepost.cli.app import main

__all__ = ["main"]
