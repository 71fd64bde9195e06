"""Each load generator: the command that runs it against a server, and where its report says what.

All three send chats of so many random tokens and ask for so many in return, past the model's end token, with
a fixed number of requests at a time.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.cpu_peers.server_process import MODEL
from benchmarks.subjects import REPOSITORY

__all__ = ["GENERATORS", "Generator", "Load", "Measured"]


@dataclass(frozen=True, kw_only=True)
class Load:
    """What a server is asked for.

    Attributes:
        requests: in all.
        concurrency: at a time.
        prompt_tokens: of each prompt, before the chat form around it.
        output_tokens: of each reply.
    """

    requests: int
    concurrency: int
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a generator reports; times in milliseconds.

    Attributes:
        completed: requests that were answered in full.
        first_token: median time to the first token.
        first_token_p99: of which 99 % are below.
        per_token: median time per token after the first.
        tokens_per_second: output tokens of all requests together.
    """

    completed: int
    first_token: float
    first_token_p99: float
    per_token: float
    tokens_per_second: float


@dataclass(frozen=True, kw_only=True)
class Generator:
    """One generator.

    Attributes:
        name: of the program.
        command: what runs it: of its interpreter, the server's address, the tokenizer's folder, the load and
            a folder for its report.
        read: its report in that folder.
    """

    name: str
    command: Callable[[Path, str, Path, Load, Path], list[str]]
    read: Callable[[Path], Measured]


# --- vllm bench serve ------------------------------------------------------------------------------


def _vllm(python: Path, url: str, tokenizer: Path, load: Load, out: Path) -> list[str]:
    return [
        *(str(python), str(REPOSITORY / "benchmarks" / "load" / "vllm_bench.py")),
        *("--backend", "openai-chat", "--base-url", url, "--endpoint", "/v1/chat/completions"),
        *("--model", MODEL, "--tokenizer", str(tokenizer), "--dataset-name", "random", "--ignore-eos"),
        *("--random-input-len", str(load.prompt_tokens), "--random-output-len", str(load.output_tokens)),
        *("--num-prompts", str(load.requests), "--max-concurrency", str(load.concurrency)),
        *("--save-result", "--result-dir", str(out), "--result-filename", "vllm.json", "--disable-tqdm"),
    ]


def _read_vllm(out: Path) -> Measured:
    found = _json(out / "vllm.json")
    return Measured(
        completed=found["completed"],
        first_token=found["median_ttft_ms"],
        first_token_p99=found["p99_ttft_ms"],
        per_token=found["median_tpot_ms"],
        tokens_per_second=found["output_throughput"],
    )


# --- guidellm ----------------------------------------------------------------------------------------


def _guidellm(python: Path, url: str, tokenizer: Path, load: Load, out: Path) -> list[str]:
    data = f"prompt_tokens={load.prompt_tokens},output_tokens={load.output_tokens}"
    return [
        *(str(python.with_name("guidellm")), "run", "--disable-console"),
        *("--backend", f"kind=openai_http,target={url},model={MODEL}"),
        *("--profile", f"kind=concurrent,streams={load.concurrency}"),
        *("--constraint", f"kind=max_requests,count={load.requests}"),
        *("--tokenizer", f"kind=hf_auto,model={tokenizer}", "--data", f"kind=synthetic_text,{data}"),
        *("--output", f"kind=json,path={out / 'guidellm.json'}"),
    ]


def _read_guidellm(out: Path) -> Measured:
    (run,) = _json(out / "guidellm.json")["benchmarks"]
    metrics = run["metrics"]
    first = metrics["time_to_first_token_ms"]["successful"]
    tokens = metrics["output_token_count"]["successful"]["total_sum"]
    return Measured(
        completed=metrics["request_totals"]["successful"],
        first_token=first["median"],
        first_token_p99=first["percentiles"]["p99"],
        per_token=metrics["inter_token_latency_ms"]["successful"]["median"],
        # Its own rate is a median over tokens, which is another thing.
        tokens_per_second=tokens / run["duration"],
    )


# --- aiperf ------------------------------------------------------------------------------------------


def _aiperf(python: Path, url: str, tokenizer: Path, load: Load, out: Path) -> list[str]:
    return [
        *(str(python.with_name("aiperf")), "profile", "--ui", "none", "--url", url, "--model", MODEL),
        *("--tokenizer", str(tokenizer), "--endpoint-type", "chat", "--streaming"),
        *("--concurrency", str(load.concurrency), "--request-count", str(load.requests)),
        *("--synthetic-input-tokens-mean", str(load.prompt_tokens), "--synthetic-input-tokens-stddev", "0"),
        *("--output-tokens-mean", str(load.output_tokens), "--extra-inputs", "ignore_eos:true"),
        *("--use-server-token-count", "--artifact-dir", str(out / "aiperf")),
    ]


def _read_aiperf(out: Path) -> Measured:
    found = _json(out / "aiperf" / "profile_export_aiperf.json")
    return Measured(
        completed=int(found["request_count"]["avg"]),
        first_token=found["time_to_first_token"]["p50"],
        first_token_p99=found["time_to_first_token"]["p99"],
        per_token=found["inter_token_latency"]["p50"],
        tokens_per_second=found["output_token_throughput"]["avg"],
    )


def _json(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


GENERATORS: Mapping[str, Generator] = {
    generator.name: generator
    for generator in (
        Generator(name="vllm", command=_vllm, read=_read_vllm),
        Generator(name="guidellm", command=_guidellm, read=_read_guidellm),
        Generator(name="aiperf", command=_aiperf, read=_read_aiperf),
    )
}
