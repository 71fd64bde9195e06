"""A served engine without a model: the scheduler, the pages and the server are real, the tokens scripted."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI

from milepost.chat.families import chat_encoding
from milepost.engine.async_engine import AsyncEngine
from milepost.engine.engine import Engine
from milepost.grammar.compiler import GrammarCompiler
from milepost.memory.layout import PagedLayout
from milepost.memory.pool import PagePool
from milepost.prefix.cache import PrefixCache
from milepost.prefix.config import CacheConfig
from milepost.scheduler.config import SchedulerConfig
from milepost.scheduler.scheduler import Scheduler
from milepost.server import Metrics, ServerConfig, Services, Tracing, bind, create_app
from milepost.server.serving import DrainingServer
from milepost.testing.scripted_executor import ScriptedExecutor
from milepost.types import Batch, BatchResult

MODEL = "scripted"
NUM_PAGES = 80
MAX_MODEL_LEN = 1000
DEFAULT_CONFIG = ServerConfig(drain_seconds=5)

SPECIALS = ("[EOS]", "<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>")
SPECIAL_IDS = {name: 256 + index for index, name in enumerate(SPECIALS)}
EOS = SPECIAL_IDS["[EOS]"]

END_OF_REPLY = "<|close|>response<|sep|><|close|>message<|sep|><|end_of_msg|>"


class ByteTokenizer:
    """One token a byte, and K3's markers behind them."""

    vocab_size = 256 + len(SPECIALS)
    chat_defaults: Mapping[str, object] = {}

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def special(self, name: str) -> int:
        return SPECIAL_IDS[name]

    def special_name(self, token_id: int) -> str | None:
        return SPECIALS[token_id - 256] if token_id >= 256 else None

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id]) if token_id < 256 else b""

    def decode(self, token_ids: Sequence[int]) -> str:
        return b"".join(map(self.token_bytes, token_ids)).decode(errors="replace")


def reply_tokens(text: str) -> list[int]:
    """Token ids of a model's output, markers spelt out."""
    pattern = "|".join(map(re.escape, SPECIALS))
    tokens: list[int] = []
    for piece in re.split(f"({pattern})", text):
        tokens.extend([SPECIAL_IDS[piece]] if piece in SPECIAL_IDS else piece.encode())
    return tokens


@dataclass
class Script:
    """What every request draws; then EOS for ever."""

    tokens: list[int] = field(default_factory=list)

    def write(self, text: str) -> None:
        self.tokens = reply_tokens(text)

    def __call__(self, request_id: str, index: int) -> int:
        return self.tokens[index] if index < len(self.tokens) else EOS


class PacedExecutor(ScriptedExecutor):
    """A scripted executor whose steps can take time; the next request can fail, or break its steps."""

    seconds = 0.0
    fail_next: str | None = None
    break_next_request = False

    def run(self, batch: Batch) -> BatchResult:
        time.sleep(self.seconds)
        if self.break_next_request and batch.new_requests:
            self.break_steps(batch.new_requests[0].request_id)
            self.break_next_request = False
        if self.fail_next is not None and batch.rows:
            self.fail_request(batch.rows[0].request_id, self.fail_next)
            self.fail_next = None
        return super().run(batch)


def small_layout() -> PagedLayout:
    """Pages of 16 tokens; a state takes a few of them."""
    return PagedLayout(
        block_size=16,
        num_attention_layers=1,
        num_recurrent_layers=1,
        row_dim=64,
        kv_itemsize=2,
        num_heads=1,
        head_rows=32,
        head_dim=32,
        tile_rows=16,
        conv_channels=96,
        conv_window=3,
        conv_itemsize=2,
    )


@dataclass
class Reply:
    """An HTTP reply."""

    status: int
    body: bytes
    headers: dict[str, str]

    @property
    def json(self) -> Any:
        """The body of a success."""
        assert self.status == 200, self.body
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, object]:
        """The error of a reply that has one and nothing else."""
        content = json.loads(self.body)
        assert list(content) == ["error"]
        assert sorted(content["error"]) == ["code", "message", "param", "type"]
        return dict(content["error"])


def read_samples(metrics: bytes) -> dict[str, float]:
    """Prometheus' text by name and labels, those apart that every sample has."""
    samples = {}
    for line in metrics.decode().splitlines():
        if line and not line.startswith("#"):
            sample, _, value = line.rpartition(" ")
            name, _, labels = sample.partition("{")
            kept = [
                f'{label}="{text}"'
                for label, text in re.findall(r'(\w+)="((?:[^"\\\\]|\\\\.)*)"', labels)
                if label not in {"model_name", "engine"}
            ]
            samples[f"{name}{{{','.join(kept)}}}" if kept else name] = float(value)
    return samples


def read_metric(url: str, name: str) -> float:
    """A sample of a server's /metrics by its name and its own labels."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:
        return read_samples(reply.read())[name]


class ServedEngine:
    """A server in a thread of its own, on a free port."""

    def __init__(self, config: ServerConfig = DEFAULT_CONFIG, tracing: Tracing | None = None) -> None:
        self.script = Script()
        self.executor = PacedExecutor(self.script)
        tokenizer = ByteTokenizer()
        encoding = chat_encoding("kimi_k3", tokenizer)
        layout, pool = small_layout(), PagePool(NUM_PAGES)
        self.scheduler = Scheduler(
            SchedulerConfig(
                max_model_len=MAX_MODEL_LEN,
                token_budget=256,
                max_num_seqs=16,
                stop_token_ids=encoding.stop_token_ids,
                vocab_size=tokenizer.vocab_size,
            ),
            layout,
            pool,
            PrefixCache(CacheConfig(), layout, pool),
        )
        metrics = Metrics()
        self.engine = AsyncEngine(Engine(self.executor, self.scheduler, tokenizer, observer=metrics))
        self.services = Services(
            config=config,
            engine=self.engine,
            metrics=metrics,
            tokenizer=tokenizer,
            grammars=GrammarCompiler(
                tokenizer, vocab_size=tokenizer.vocab_size, stop_token_ids=encoding.stop_token_ids
            ),
            encoding=encoding,
            model_name=MODEL,
            created=1_700_000_000,
            system_fingerprint="milepost-test",
            tracing=tracing,
        )
        app = create_app(self.services)
        self.front = app.state.front
        ready = threading.Event()
        self.server = DrainingServer(app, on_ready=lambda _: ready.set())
        listener = bind("127.0.0.1", 0)
        self.address: tuple[str, int] = listener.getsockname()
        self.url = f"http://127.0.0.1:{self.address[1]}"
        self._thread = threading.Thread(target=self.server.run, args=([listener],))
        self._thread.start()
        assert ready.wait(10)

    def client(self) -> OpenAI:
        return OpenAI(base_url=f"{self.url}/v1", api_key="unused", max_retries=0, timeout=20)

    def call(
        self, path: str, body: object = None, *, method: str | None = None, headers: Mapping[str, str] = {}
    ) -> Reply:
        """One plain HTTP request; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data, method=method)
        for name, value in ({"Content-Type": "application/json"} | dict(headers)).items():
            request.add_header(name, value)
        try:
            with urllib.request.urlopen(request, timeout=20) as reply:
                return Reply(reply.status, reply.read(), dict(reply.headers))
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.read(), dict(error.headers))

    def events(self, path: str, body: object) -> list[Any]:
        """The bodies of a stream's events, of which the last must be the end."""
        reply = self.call(path, body)
        *events, end = reply.body.decode().removesuffix("\n\n").split("\n\n")
        assert (reply.status, end) == (200, "data: [DONE]")
        return [json.loads(event.removeprefix("data: ")) for event in events]

    def metric(self, name: str) -> float:
        """A sample of /metrics by its exact name and labels."""
        return read_metric(self.url, name)

    def wait_until_idle(self, seconds: float = 5.0) -> None:
        """Wait until no page is owned; fails when one still is after `seconds`."""
        deadline = time.monotonic() + seconds
        while self.metric('milepost:pages{state="owned"}') > 0:
            assert time.monotonic() < deadline, "pages are still owned"
            time.sleep(0.02)

    def drain(self) -> None:
        """What the first SIGTERM does."""
        self.server.handle_exit(signal.SIGTERM, None)

    def front_is_idle(self) -> bool:
        """Whether the server has forgotten every request."""
        return bool(self.front.num_running == 0)

    def stop(self) -> None:
        """Shut down for good, by as many signals as it takes."""
        self.drain()
        self.drain()
        self.join()

    def close(self) -> None:
        """Shut down, the engine too."""
        self.stop()
        asyncio.run(self.engine.stop())

    def join(self) -> None:
        """Wait until the server has returned."""
        self._thread.join(20)
        assert not self._thread.is_alive()


@contextmanager
def serving(
    config: ServerConfig = DEFAULT_CONFIG, *, tracing: Tracing | None = None
) -> Iterator[ServedEngine]:
    """A server that is shut down at the end."""
    served = ServedEngine(config, tracing)
    try:
        yield served
    finally:
        served.close()


def run_for_long(served: ServedEngine, seconds: float = 0.02) -> None:
    """From now on a reply is as long as it can be, and each of its steps takes `seconds`."""
    served.script.tokens = [ord("x")] * MAX_MODEL_LEN
    served.executor.seconds = seconds
