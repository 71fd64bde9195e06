"""200 clients that stream, leave, fail and come again: everything ends once, and nothing grows.

`make test` runs a minute of it; the ten minutes are `python -m pytest -m soak tests/soak`. Either way a
report of figures is written, to the file that $MILEPOST_SOAK_REPORT names if there is one.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from milepost.cli.shipped_model import shipped_model
from tests.repository.paths import ROOT
from tests.soak.probes import PROBES, ask, ask_all, options_served, probes
from tests.soak.traffic import COMPLETIONS, LEAVES, MODEL, OPTIONS
from tests.soak.watched import Sample, Watched, percentile

CLIENTS = 200
SEED = os.environ.get("MILEPOST_SOAK_SEED", "7")
SERVER = (
    *("--memory", "24MiB", "--host-cache", "12MiB", "--max-num-seqs", "64", "--threads", "1"),
    *("--max-num-batched-tokens", "1024"),
)
MOST_FILLS, FEW_PAGES = 60, 20
MOST_GROWTH = 0.04  # of the memory after the first third
LEAST_GROWTH = 12 << 20  # bytes that say nothing: allocators keep what they had
CONTROL = "milepost:step_control_seconds"
LEAST_CONTROL = 0.25  # seconds that say nothing: whatever else runs on the machine takes turns
LEAST_MEAN_CONTROL = 0.01  # of all steps together it takes less


def load(watched: Watched, seconds: float, served: set[str]) -> subprocess.Popen[str]:
    """Start the process of the clients."""
    arguments = ["--clients", str(CLIENTS), "--seconds", str(seconds), "--seed", SEED]
    arguments += ["--options", json.dumps(sorted(served))]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.soak.clients", watched.url, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def fill(watched: Watched) -> None:
    """Let every page be written once: the system commits memory then, and not when it is asked for."""
    words = random.Random(0)
    for _ in range(MOST_FILLS):
        prompts = [[words.randrange(1000) for _ in range(300)] for _ in range(8)]
        ask(watched.url, COMPLETIONS, {"model": MODEL, "prompt": prompts, "max_tokens": 1})
        sample = watched.scrape()
        tier = "milepost:prefix_cache_tier"
        free_host = sample.total(f"{tier}_pages", tier="host") - sample.total(
            f"{tier}_used_pages", tier="host"
        )
        if sample.total("milepost:pages", state="free") < FEW_PAGES and free_host < FEW_PAGES:
            return
    raise AssertionError(f"pages are still free: {sample.total('milepost:pages', state='free')}, {free_host}")


def watch(watched: Watched, clients: subprocess.Popen[str], seconds: float, report: dict[str, Any]) -> None:
    """Note memory and the control plane's p99 by thirds of the load, and compare the probes' texts in it."""
    asked = probes(set(report["options"]))
    begun = time.monotonic()
    marks: list[Sample] = [watched.scrape()]
    memory: list[list[int]] = [[], [], []]
    waves = 0
    while clients.poll() is None:
        passed = time.monotonic() - begun
        third = min(2, int(3 * passed / seconds))
        if len(marks) <= third:
            marks.append(watched.scrape())
        memory[third].append(watched.memory())
        if third == waves:
            texts = ask_all(watched.url, asked, at_once=PROBES)
            report["differing_probes"] += [
                {"asked": one, "alone": alone, "under_load": text}
                for one, alone, text in zip(asked, report["alone"], texts, strict=True)
                if text != alone
            ]
            waves += 1
        time.sleep(0.25)
    marks.append(watched.scrape())
    report["probe_waves"] = waves
    report["memory_by_third"] = [statistics.median(third) for third in memory]
    report["control_p99_s_by_third"] = [
        percentile(one.buckets(CONTROL), two.buckets(CONTROL), 0.99) for one, two in itertools.pairwise(marks)
    ]
    report["control_mean_s_by_third"] = [mean_control(one, two) for one, two in itertools.pairwise(marks)]


def mean_control(before: Sample, after: Sample) -> float:
    """Seconds that the control plane took for a step between two scrapes."""
    seconds, steps = (
        after.total(f"{CONTROL}_{part}") - before.total(f"{CONTROL}_{part}") for part in ("sum", "count")
    )
    return seconds / steps


def soak(seconds: float) -> dict[str, Any]:
    """Serve the load for so long; returns what was seen."""
    watched = Watched.start(shipped_model(), MODEL, *SERVER)
    try:
        served = options_served(watched.url)
        report: dict[str, Any] = {"seconds": seconds, "seed": SEED, "options": sorted(served)}
        report["not_served"] = sorted(set(OPTIONS) - served)
        report |= {"alone": ask_all(watched.url, probes(served), at_once=1), "differing_probes": []}
        fill(watched)
        before = watched.idle()
        clients = load(watched, seconds, served)
        try:
            watch(watched, clients, seconds, report)
            report["clients"] = json.loads(clients.communicate()[0])
        finally:
            clients.kill()
            clients.wait()
        after = watched.idle()
        report["server"] = server_side(before, after)
        report["probe_choices"] = report["probe_waves"] * sum(map(len, report["alone"]))
        report["exit_code"] = watched.stop()
        report["log"] = watched.log[1:]
        return report
    finally:
        watched.kill()


def server_side(before: Sample, after: Sample) -> dict[str, Any]:
    """What the server counted between two scrapes, and holds at the second."""
    ended = {
        reason: after.total("milepost:requests_total", finished_reason=reason)
        - before.total("milepost:requests_total", finished_reason=reason)
        for reason in ("stop", "length", "abort", "error", "tool_calls")
    }
    finished = sum(
        sample.total("milepost:request_success_total") * sign for sample, sign in ((after, 1), (before, -1))
    )
    return {
        "ended": {reason: int(count) for reason, count in ended.items() if count},
        "finished": int(finished),
        "unfinished": int(after.unfinished),
        "owned_pages": int(after.owned_pages),
        "preemptions": int(after.total("milepost:num_preemptions_total")),
    }


def require_sound(report: dict[str, Any]) -> None:
    """Everything that must hold of a soak."""
    clients, server = report["clients"], report["server"]
    assert not report["not_served"]
    assert not clients["num_faults"], "\n".join(clients["faults"])
    # All kinds of ends were there, and enough of them.
    assert clients["ends"]["complete"] > CLIENTS
    assert {"an error event", "refused 504", *(f"left {where}" for where in LEAVES)} <= clients["ends"].keys()
    assert {"stop", "length", "deadline_exceeded"} <= clients["finish_reasons"].keys()
    # Each request of the server is one that a client saw end, or that its client left.
    ended = sum(server["ended"].values())
    seen = clients["ended_choices"] + report["probe_choices"]
    assert seen <= ended <= seen + clients["left_choices"]
    assert server["ended"].get("error", 0) == 0
    assert server["finished"] == ended, "the engine and the front disagree"
    assert server["unfinished"] == server["owned_pages"] == 0
    assert report["probe_waves"] >= 2
    assert not report["differing_probes"], json.dumps(report["differing_probes"][:2], indent=1)
    _, middle, last = report["memory_by_third"]
    assert last - middle <= max(LEAST_GROWTH, MOST_GROWTH * middle), report["memory_by_third"]
    _, *control = report["control_p99_s_by_third"]
    assert None not in control
    # Neighbouring buckets differ by a factor of 2 or 2.5.
    assert control[-1] <= max(2.5 * control[0], LEAST_CONTROL), report["control_p99_s_by_third"]
    _, middle_mean, last_mean = report["control_mean_s_by_third"]
    assert last_mean <= max(2 * middle_mean, LEAST_MEAN_CONTROL), report["control_mean_s_by_third"]
    assert report["exit_code"] == 0
    assert report["log"] == []


def written(report: dict[str, Any]) -> dict[str, Any]:
    """Write a report where its reader wants it."""
    figures = {name: value for name, value in report.items() if name != "alone"}
    if path := os.environ.get("MILEPOST_SOAK_REPORT"):
        Path(path).write_text(json.dumps(figures, indent=1) + "\n")
    return report


def test_a_minute_of_everything() -> None:
    require_sound(written(soak(40)))


@pytest.mark.soak
def test_ten_minutes_of_everything() -> None:
    require_sound(written(soak(600)))
