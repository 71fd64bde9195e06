"""``milepost serve``: the OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from click.core import ParameterSource

from milepost import __version__
from milepost.cli.config_file import NO_FILE, read_config_file
from milepost.cli.config_text import config_text
from milepost.cli.option_groups import GroupedCommand, option_group
from milepost.cli.options import engine_options, examples, model_argument, take_engine_config
from milepost.cli.serve_options import server_options, take_server_config
from milepost.cli.terminal import notes, print_notes, progress_bar, write
from milepost.descriptors import files_allowed, room_for_connections

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

    from milepost.config import EngineConfig, ResolvedConfig
    from milepost.engine.async_engine import AsyncEngine
    from milepost.llm import LoadedEngine
    from milepost.server import Metrics, Services
    from milepost.server.config import ServerConfig

__all__ = ["serve"]

_from_file = option_group("Config file")


@click.command(
    cls=GroupedCommand,
    shared_heading="Engine",
    epilog=examples(
        "milepost serve",
        "milepost serve path/to/checkpoint --port 8080 --memory 4GiB --max-num-seqs 32",
        "milepost serve --print-config > milepost.toml; milepost serve --config milepost.toml",
        "curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\",
        '  -d \'{"model": "milepost-toy-k3", "messages": [{"role": "user", "content": "Hello"}]}\'',
    ),
)
@model_argument
@click.option("--served-model-name", metavar="NAME", help="The folder's name by default.")
@click.option("--seed", type=int, help="Of requests that bring none.")
@_from_file(
    "--config",
    "config_file",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Options in TOML, tables [engine] and [server]; what stands on the command line wins.",
)
@_from_file(
    "--print-config", is_flag=True, help="Write all options and their values as such a file, and end."
)
@server_options
@engine_options
def serve(
    *,
    model: Path,
    config_file: Path | None,
    print_config: bool,
    served_model_name: str | None,
    seed: int | None,
    **options: Any,  # noqa: ANN401  # the shared options, checked where they are taken
) -> None:
    """Serve the model over HTTP, in OpenAI's protocol.

    SIGTERM or Ctrl-C refuses new requests and lets the running ones end; a second one aborts them.
    """
    file = NO_FILE if config_file is None else read_config_file(config_file)
    if not _is_said("model"):
        model = Path(file.engine.get("model", model))
    server = take_server_config(options, file)
    config = take_engine_config(model, options, file, served_model_name=served_model_name, seed=seed)
    if print_config:
        write(config_text(config, server))
        return
    _run(server, config)


def _is_said(parameter: str) -> bool:
    """Whether the command line says what a parameter is."""
    return click.get_current_context().get_parameter_source(parameter) is not ParameterSource.DEFAULT


def _run(server: ServerConfig, config: EngineConfig) -> None:
    # These load torch and the HTTP stack, which takes seconds.
    from milepost.engine.async_engine import AsyncEngine
    from milepost.server import Metrics, bind, check_access, configure_logging, create_app, otlp_provider
    from milepost.server import serve as run_server

    configure_logging(server)
    _outlive_reloads(server)
    # What is wrong with keys, certificates, traces or a port is found before the weights are read.
    warnings = check_access(server)
    server, fewer = _within_open_files(server)
    provider = None if server.otlp_endpoint is None else otlp_provider(server.otlp_endpoint)
    listener = bind(server.host, server.port)
    try:
        with progress_bar("Loading weights") as progress:
            from milepost.llm import load_engine

            metrics = Metrics()
            loaded = load_engine(config, progress=progress, observer=metrics)
        _note(server, [*loaded.config.notes, *warnings, *fewer])
        engine = AsyncEngine(loaded.engine)
        _spare_collections()
        try:
            run_server(
                create_app(_services(loaded, server, engine, metrics, provider)),
                listener,
                on_ready=partial(_announce, server, loaded.config),
            )
        finally:
            _outlive_reloads(server)
            asyncio.run(engine.stop())
    finally:
        listener.close()


def _outlive_reloads(server: ServerConfig) -> None:
    """SIGHUP reads the keys again while the server runs: before and after, it must not end the process.

    Keys are read when the model is loaded, so what has changed until then is seen.
    """
    if server.api_keys is not None and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _within_open_files(server: ServerConfig) -> tuple[ServerConfig, list[str]]:
    """The server with as many connections as this process may have, and a warning if they are fewer."""
    room = room_for_connections(server.max_connections)
    if room == server.max_connections:
        return server, []
    note = (
        f"This process may have {files_allowed():,} files open, so the server takes {room:,} connections at "
        f"once, not {server.max_connections:,}. Raise the hard limit (`ulimit -Hn`, LimitNOFILE)."
    )
    return msgspec.structs.replace(server, max_connections=room), [note]


def _spare_collections() -> None:
    """Let the garbage collector never look again at what is loaded, which is there to stay.

    A full collection walks over modules, tokenizer and weights' owners, hundreds of thousands of objects,
    while every request waits. Only a process that is ours alone may do so: what is frozen and becomes
    garbage later is never found.
    """
    gc.collect()
    gc.freeze()


def _services(
    loaded: LoadedEngine,
    server: ServerConfig,
    engine: AsyncEngine,
    metrics: Metrics,
    provider: TracerProvider | None,
) -> Services:
    from milepost.server import Services, Tracing  # as above

    config = loaded.config
    return Services(
        config=server,
        engine=engine,
        metrics=metrics,
        tokenizer=loaded.tokenizer,
        grammars=loaded.grammars,
        encoding=loaded.encoding,
        model_name=config.served_model_name,
        created=int(time.time()),
        tracing=None if provider is None else Tracing(provider, config.served_model_name),
        system_fingerprint=f"milepost-{__version__}-{config.dtype}-{config.weights}-{config.kernels}",
    )


def _note(server: ServerConfig, sentences: Sequence[str]) -> None:
    """What whoever runs the server should know: for people, or in the log's form where programs read it."""
    from milepost.server import tell  # as above

    if server.log_format != "json":
        print_notes(sentences)
        return
    for sentence in sentences:
        tell(logging.WARNING, sentence)


def _announce(server: ServerConfig, config: ResolvedConfig, address: str) -> None:
    from milepost.server import tell  # as above

    what = f"{config.served_model_name}, requests of up to {config.max_model_len:,} tokens"
    sentence = f"Milepost answers at {address}/v1: {what}"
    if server.log_format == "json":
        tell(logging.INFO, f"{sentence}.")
        return
    # Nobody may read it, or its disk may be full: the server answers all the same.
    with suppress(OSError):
        notes().print(f"{sentence} (Ctrl-C ends it).", markup=False, soft_wrap=True)
