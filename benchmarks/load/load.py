"""The benchmark: a server of the shipped model under each generator's load, one after the other."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.cpu_peers.options import environment
from benchmarks.cpu_peers.server_process import MODEL, Server
from benchmarks.load.generators import GENERATORS, Generator, Load, Measured
from benchmarks.load.tokenizer_folder import write_tokenizer
from benchmarks.results import Result
from milepost.cli.shipped_model import shipped_model
from milepost.errors import ConfigError

__all__ = ["INSTALL", "LoadOptions", "load"]

INSTALL = "sh benchmarks/load/install.sh"
SECONDS = 300.0
_FULL = Load(requests=200, concurrency=8, prompt_tokens=128, output_tokens=32)
_QUICK = Load(requests=32, concurrency=8, prompt_tokens=128, output_tokens=32)


@dataclass(frozen=True)
class LoadOptions:
    """What the command is given.

    Attributes:
        folder: the environment that has the generators.
        generators: their names.
        quick: fewer requests.
    """

    folder: Path
    generators: Sequence[str]
    quick: bool

    @property
    def python(self) -> Path:
        """The environment's interpreter; not resolved, as the link says which environment it is of."""
        path = self.folder.absolute() / "bin" / "python"
        if not path.exists():
            raise ConfigError(f"There is no {path}. Make it with: {INSTALL} {self.folder}")
        return path


def load(options: LoadOptions) -> Iterator[Result]:
    """Vllm bench serve, guidellm and aiperf against milepost serve (--peers, --generator)."""
    asked = _QUICK if options.quick else _FULL
    command: list[object] = [sys.executable, "-m", "milepost", "serve", shipped_model()]
    with tempfile.TemporaryDirectory() as folder, Server("milepost", _options(command)) as server:
        tokenizer = write_tokenizer(shipped_model(), Path(folder) / "tokenizer")
        with server.running() as port:
            for name in options.generators:
                generator = GENERATORS[name]
                _run(generator, options.python, port, tokenizer, asked, Path(folder))
                yield from _results(generator, generator.read(Path(folder)), asked)


def _options(command: list[object]) -> list[object]:
    return [*command, "--memory", "1GiB", "--served-model-name", MODEL]


def _run(generator: Generator, python: Path, port: int, tokenizer: Path, asked: Load, out: Path) -> None:
    """Run a generator; what it says is shown if it fails."""
    command = generator.command(python, f"http://127.0.0.1:{port}", tokenizer, asked, out)
    try:
        done = subprocess.run(
            command,
            cwd=out,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
            check=False,
        )
    except FileNotFoundError:
        raise ConfigError(f"There is no {command[0]}. Make it with: {INSTALL} DIR") from None
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{generator.name} did not end within {SECONDS:.0f} seconds.") from None
    if done.returncode:
        said = done.stdout.decode(errors="replace").strip()
        raise ConfigError(f"{generator.name} failed with {done.returncode}: {said[-3000:]}")


def _results(generator: Generator, measured: Measured, asked: Load) -> Iterator[Result]:
    if measured.completed != asked.requests:
        raise ConfigError(
            f"{generator.name}: only {measured.completed} of {asked.requests} requests were answered."
        )
    rows = (
        ("time to first token, median", "ms", measured.first_token),
        ("time to first token, 99 % below", "ms", measured.first_token_p99),
        ("time per further token, median", "ms", measured.per_token),
        ("output of all requests", "tokens/s", measured.tokens_per_second),
    )
    for quantity, unit, value in rows:
        yield Result(
            benchmark="load",
            subject=generator.name,
            quantity=quantity,
            unit=unit,
            samples=[value],
            settings=asdict(asked),
        )
