"""A server that is killed in the middle of its traffic, and another one that takes over its disk cache."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from milepost.cli.shipped_model import shipped_model
from tests.soak.probes import ask, ask_all, cached_tokens, probes
from tests.soak.test_soak import load
from tests.soak.traffic import COMPLETIONS, MODEL, OPTIONS
from tests.soak.watched import Watched

PROMPT = {
    "model": MODEL,
    "prompt": "the code for amber is 7412 and the road " * 12,
    "temperature": 0,
    "max_tokens": 20,
}


def stores_on_disk(watched: Watched) -> float:
    return watched.scrape().total("milepost:prefix_cache_tier_stores_total", tier="disk")


@pytest.mark.slow
def test_sigkill_in_the_middle_of_traffic_and_a_restart_with_the_disk_cache(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    options = (
        "--memory",
        "24MiB",
        "--host-cache",
        "24MiB",
        "--disk-cache",
        f"{folder},96MiB",
        "--threads",
        "1",
    )
    asked = probes(set(OPTIONS))
    for life in range(3):
        watched = Watched.start(shipped_model(), MODEL, *options)
        try:
            cached = cached_tokens(watched.url, COMPLETIONS, PROMPT)
            if life == 0:
                assert cached == 0
                first = ask(watched.url, COMPLETIONS, PROMPT)
                alone = ask_all(watched.url, asked, at_once=1)
            else:
                # What the killed process had written is found, and nothing of it is torn.
                assert cached > 50
                assert ask(watched.url, COMPLETIONS, PROMPT) == first
                assert ask_all(watched.url, asked, at_once=4) == alone
            before = stores_on_disk(watched)
            clients = load(watched, 4, set(OPTIONS))
            try:
                time.sleep(3.5)
                assert stores_on_disk(watched) > before
                watched.kill()
            finally:
                report = json.loads(clients.communicate()[0])
            assert report["num_faults"] > 0, "all were served: it was killed too late"
            assert report["ends"]["complete"] > 0
        finally:
            watched.kill()
