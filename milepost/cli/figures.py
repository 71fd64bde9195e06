"""What a run of ``milepost generate`` measured."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.table import Table

from milepost.byte_counts import format_bytes
from milepost.cli.terminal import figures_table
from milepost.types import RequestOutput, Usage

if TYPE_CHECKING:
    from milepost.llm import LLM, Completion

__all__ = ["RunFigures"]


class RunFigures:
    """Clock and page counts of a run; the clock starts when it is built.

    Args:
        llm: what runs; its pool is asked after every output.
        load_seconds: how long loading took.
    """

    def __init__(self, llm: LLM, *, load_seconds: float) -> None:
        self._llm = llm
        self._load_seconds = load_seconds
        self._started = time.perf_counter()
        self._first: float | None = None
        self._last = self._started
        self._usages: dict[str, Usage] = {}
        self._peak_pages = 0

    def saw(self, output: RequestOutput) -> None:
        """Note a streamed output."""
        self._last = time.perf_counter()
        if self._first is None and output.token_ids:
            self._first = self._last
        self._usages[output.request_id] = output.usage
        self._peak_pages = max(self._peak_pages, self._llm.stats().scheduler.pages.leased)

    def saw_completion(self, completion: Completion) -> None:
        """Note a finished prompt of several."""
        self._last = time.perf_counter()
        self._usages[str(len(self._usages))] = completion.usage

    def table(self) -> Table:
        """The figures for a reader."""
        prompt = sum(usage.prompt_tokens for usage in self._usages.values())
        cached = sum(usage.cached_tokens for usage in self._usages.values())
        output = sum(usage.output_tokens for usage in self._usages.values())
        figures = {"ready after": f"{self._load_seconds:.2f} s", "prompt tokens": f"{prompt:,}"}
        figures["cached of them"] = f"{cached:,}"
        figures["output tokens"] = f"{output:,}"
        if self._first is not None:
            figures["time to first token"] = f"{1000 * (self._first - self._started):.0f} ms"
            if output > 1 and self._last > self._first:
                rate = (output - 1) / (self._last - self._first)
                figures["decode"] = f"{rate:.1f} tokens/s"
        elif self._last > self._started:
            figures["output"] = f"{output / (self._last - self._started):.1f} tokens/s"
        return figures_table("What happened", figures | self._page_figures())

    def _page_figures(self) -> dict[str, str]:
        layout, config = self._llm.layout, self._llm.config
        figures = {}
        if self._peak_pages:
            kv_pages = self._peak_pages - layout.pages_per_state
            for name, pages in (("state", layout.pages_per_state), ("KV", kv_pages)):
                figures[f"pages of {name}"] = f"{pages} ({format_bytes(pages * layout.page_bytes)})"
        figures["page"] = f"{format_bytes(layout.page_bytes)}, {layout.block_size} tokens of KV"
        figures["arena"] = f"{config.num_pages:,} pages ({format_bytes(config.memory_bytes)})"
        return figures
