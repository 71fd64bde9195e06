"""Ask aiconfigurator for the rows of ``milepost/assets/references`` again.

Run by a Python that has aiconfigurator 0.12.0 (PyPI); nothing of Milepost is imported:

    python benchmarks/aiconfigurator_rows.py
"""

from __future__ import annotations

import importlib
import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILE = Path(__file__).resolve().parents[1] / "milepost" / "assets" / "references" / "kimi-k3.json"
MODEL = "moonshotai/Kimi-K3"
CLOSE = 1e-3


def main() -> int:
    """Print each row's stored and new time; 1 if any differs by more than a thousandth."""
    warnings.filterwarnings("ignore")
    logging.disable(logging.CRITICAL)
    estimate = importlib.import_module("aiconfigurator.cli.api").cli_estimate
    changed = 0
    for row in json.loads(FILE.read_text(encoding="utf-8"))["rows"]:
        if "asked" not in row:
            continue
        seconds = _ask(estimate, row)
        same = abs(seconds / row["seconds"] - 1.0) < CLOSE
        changed += not same
        named = {key: row[key] for key in ("hardware", "tensor_parallel", "data_parallel", "phase", "batch")}
        print("same   " if same else "CHANGED", *named.values(), row["context"], row["seconds"], seconds)
    return 1 if changed else 0


def _ask(estimate: Callable[..., Any], row: dict[str, Any]) -> float:
    """Seconds of one step. Its ranks divide the experts, some of them within one (moe_tp)."""
    asked, decode = row["asked"], row["phase"] == "decode"
    answer = estimate(
        MODEL,
        asked["system"],
        mode="static_gen" if decode else "static_ctx",
        backend_name=asked["backend"],
        isl=row["context"],
        osl=2,  # one token is decoded
        prefix=row.get("cached", 0),
        batch_size=row["batch"],
        tp_size=row["tensor_parallel"],
        attention_dp_size=row["data_parallel"],
        moe_tp_size=asked["moe_tp"],
        moe_ep_size=asked["moe_ep"],
        moe_quant_mode=asked["moe_quant"],
    )
    return float(answer.tpot if decode else answer.ttft) / 1e3


if __name__ == "__main__":
    sys.exit(main())
