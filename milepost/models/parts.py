"""Names of a model's parts, under which kernels are timed."""

from __future__ import annotations

from typing import Final

__all__ = [
    "DENSE",
    "EMBEDDING",
    "EXPERTS",
    "HEAD",
    "KDA_PROJECTIONS",
    "KDA_RECURRENCE",
    "MIXTURE",
    "MLA_ATTENTION",
    "MLA_PROJECTIONS",
    "NORMS",
]

EMBEDDING: Final = "embedding"
NORMS: Final = "norms and residual reads"
KDA_PROJECTIONS: Final = "KDA projections"
KDA_RECURRENCE: Final = "KDA recurrence"
MLA_PROJECTIONS: Final = "MLA projections"
MLA_ATTENTION: Final = "MLA attention"
MIXTURE: Final = "router, latent and shared experts"
EXPERTS: Final = "routed experts"
DENSE: Final = "dense feed-forward"
HEAD: Final = "output head"
