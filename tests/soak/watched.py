"""`milepost serve` as a process that is watched: its address, its metrics and its memory."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.repository.paths import ROOT

__all__ = ["Sample", "Watched", "percentile"]

START_SECONDS = 120
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
# Of pages, the states in which somebody owns them.
OWNED = ("reserved", "writing", "owned", "receiving", "quarantined")


@dataclass(frozen=True)
class Sample:
    """All samples of a scrape, by name and labels as they stand there."""

    values: Mapping[str, float]

    def total(self, name: str, **labels: str) -> float:
        """The sum of a metric over all of its labels, those given excepted; 0 when it isn't there."""
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        return sum(
            value
            for sample, value in self.values.items()
            if sample.partition("{")[0] == name and all(label in sample for label in wanted)
        )

    def buckets(self, name: str) -> dict[float, float]:
        """A histogram's cumulative counts by upper bound."""
        found: dict[float, float] = {}
        for sample, value in self.values.items():
            if sample.startswith(f"{name}_bucket") and (bound := re.search(r'le="([^"]+)"', sample)):
                found[float(bound[1])] = found.get(float(bound[1]), 0) + value
        return found

    @property
    def owned_pages(self) -> float:
        """Pages that requests or transfers hold."""
        return sum(self.total("milepost:pages", state=state) for state in OWNED)

    @property
    def unfinished(self) -> float:
        """Requests that run or wait."""
        return self.total("milepost:num_requests_running") + self.total("milepost:num_requests_waiting")


def percentile(before: Mapping[float, float], after: Mapping[float, float], share: float) -> float | None:
    """Upper bound of the bucket in which a share of what was observed in between lies; None for nothing."""
    counts = {bound: count - before.get(bound, 0) for bound, count in sorted(after.items())}
    total = max(counts.values(), default=0)
    if not total:
        return None
    return next(bound for bound, count in counts.items() if count >= share * total)


@dataclass
class Watched:
    """A running server."""

    process: subprocess.Popen[bytes]
    url: str
    log: list[str]
    reader: threading.Thread

    @classmethod
    def start(cls, model: Path, name: str, *options: str, within: Sequence[str] = ()) -> Watched:
        """Start a server of `model` on a free port, and wait until it answers.

        Args:
            model: its folder.
            name: what clients call it.
            options: further ones of the command line.
            within: a command that runs the one that follows it.

        Raises:
            RuntimeError: it ended, or did not answer in time; with what it said.
        """
        command = [
            *within,
            sys.executable,
            "-m",
            "milepost",
            "serve",
            str(model),
            "--served-model-name",
            name,
        ]
        process = subprocess.Popen(
            [*command, "--port", "0", *options], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL
        )
        found: list[str] = []
        answers = threading.Event()
        log: list[str] = []

        def read() -> None:
            assert process.stderr is not None
            with process.stderr as lines:
                for line in lines:
                    log.append(line.decode(errors="replace"))
                    if match := re.search(r"(http://[\w.]+:\d+)/v1", log[-1]):
                        found.append(match[1])
                        answers.set()
            answers.set()

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        if not answers.wait(START_SECONDS) or not found:
            process.kill()
            raise RuntimeError(f"milepost serve did not start: {''.join(log)}")
        return cls(process, found[0], log, reader)

    def scrape(self) -> Sample:
        """Its metrics now."""
        values: dict[str, float] = {}
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as reply:
            for line in reply.read().decode().splitlines():
                if not line.startswith("#"):
                    sample, _, value = line.rpartition(" ")
                    values[sample] = float(value)
        return Sample(values)

    def idle(self, seconds: float = 20) -> Sample:
        """Its metrics once no request runs and nobody owns a page, or after some seconds as they are."""
        end = time.monotonic() + seconds
        while (sample := self.scrape()).unfinished or sample.owned_pages:
            if time.monotonic() > end:
                break
            time.sleep(0.1)
        return sample

    def memory(self) -> int:
        """Bytes of memory that it has resident."""
        return int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]) * PAGE_BYTES

    def stop(self, seconds: float = 60) -> int:
        """Let it drain; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(seconds)
        finally:
            self.kill()

    def kill(self) -> None:
        """End it at once, as the system would for want of memory. Safe to call twice."""
        self.process.kill()
        self.process.wait()
        self.reader.join()
