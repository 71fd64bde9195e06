"""Where the small trained model lies that comes with Milepost."""

from __future__ import annotations

from pathlib import Path

__all__ = ["SHIPPED_MODEL_NAME", "shipped_model"]

SHIPPED_MODEL_NAME = "milepost-toy-k3"


def shipped_model() -> Path:
    """Folder of the shipped checkpoint, in a source tree and in an installed package alike."""
    return Path(__file__).parents[1] / "assets" / SHIPPED_MODEL_NAME
