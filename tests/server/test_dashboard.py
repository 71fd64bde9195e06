"""The Grafana dashboard asks for metrics that there are, by labels that they have."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.repository.paths import ROOT
from tests.server.scripted_server import MODEL, ServedEngine

DASHBOARD = ROOT / "deploy" / "grafana" / "milepost.json"

# Only where a tier stands behind the arena, which the scripted server has none of.
ELSEWHERE = {"prefix_cache_tier_hits_total"}


def dashboard() -> dict[str, Any]:
    return dict(json.loads(DASHBOARD.read_text(encoding="utf-8")))


def expressions() -> list[str]:
    return [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]


def labels_by_name(metrics: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in metrics.splitlines():
        if not line.startswith("#"):
            name, _, labels = line.partition("{")
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    return found


def test_every_metric_is_there_once_something_was_served(served: ServedEngine) -> None:
    served.script.write("abc")
    served.call("/v1/completions", {"model": MODEL, "prompt": "12345"})
    served.call("/v1/completions", {"model": MODEL})
    served.wait_until_idle()
    there = labels_by_name(served.call("/metrics").body.decode())
    asked = set()
    for expression in expressions():
        grouped = re.search(r"sum by \(([\w, ]+)\)", expression)
        for name in re.findall(r"\$\{prefix\}:(\w+)", expression):
            asked.add(name)
            if name not in ELSEWHERE:
                labels = there[f"milepost:{name}"]
                assert "model_name" in labels
                assert set(grouped[1].split(", ") if grouped else ()) <= labels, expression
    assert len(asked) > 25


def test_panels_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert not cells & taken, panel["title"]
        assert place["x"] + place["w"] <= 24
        taken |= cells


def test_expressions_are_balanced() -> None:
    for expression in expressions():
        assert expression.count("(") == expression.count(")")
        assert expression.count("{") == expression.count("}")
