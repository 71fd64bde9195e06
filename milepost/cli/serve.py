"""``milepost serve``: the OpenAI-compatible server."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from milepost import __version__
from milepost.cli.option_groups import GroupedCommand
from milepost.cli.options import engine_options, examples, model_argument, take_engine_config
from milepost.cli.serve_options import server_options, take_server_config
from milepost.cli.terminal import notes, print_notes, progress_bar

if TYPE_CHECKING:
    from pathlib import Path

    from milepost.config import ResolvedConfig
    from milepost.engine.async_engine import AsyncEngine
    from milepost.llm import LoadedEngine
    from milepost.server import Metrics, Services
    from milepost.server.config import ServerConfig

__all__ = ["serve"]


@click.command(
    cls=GroupedCommand,
    shared_heading="Engine",
    epilog=examples(
        "milepost serve",
        "milepost serve path/to/checkpoint --port 8080 --memory 4GiB --max-num-seqs 32",
        "curl localhost:8000/v1/chat/completions -H 'Content-Type: application/json' \\",
        '  -d \'{"model": "milepost-toy-k3", "messages": [{"role": "user", "content": "Hello"}]}\'',
    ),
)
@model_argument
@click.option("--served-model-name", metavar="NAME", help="The folder's name by default.")
@click.option("--seed", type=int, help="Of requests that bring none.")
@server_options
@engine_options
def serve(
    *,
    model: Path,
    served_model_name: str | None,
    seed: int | None,
    **options: Any,  # noqa: ANN401  # the shared options, checked where they are taken
) -> None:
    """Serve the model over HTTP, in OpenAI's protocol.

    SIGTERM or Ctrl-C refuses new requests and lets the running ones end; a second one aborts them.
    """
    # These load torch and the HTTP stack, which takes seconds.
    from milepost.engine.async_engine import AsyncEngine
    from milepost.server import Metrics, bind, create_app
    from milepost.server import serve as run_server

    server = take_server_config(options)
    config = take_engine_config(model, options, served_model_name=served_model_name, seed=seed)
    # A port that is taken is found before the weights are read.
    listener = bind(server.host, server.port)
    try:
        with progress_bar("Loading weights") as progress:
            from milepost.llm import load_engine

            metrics = Metrics()
            loaded = load_engine(config, progress=progress, observer=metrics)
        print_notes(loaded.config.notes)
        engine = AsyncEngine(loaded.engine)
        try:
            run_server(
                create_app(_services(loaded, server, engine, metrics)),
                listener,
                on_ready=partial(_announce, loaded.config),
            )
        finally:
            asyncio.run(engine.stop())
    finally:
        listener.close()


def _services(loaded: LoadedEngine, server: ServerConfig, engine: AsyncEngine, metrics: Metrics) -> Services:
    from milepost.server import Services  # as above

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
        system_fingerprint=f"milepost-{__version__}-{config.dtype}-{config.weights}-{config.kernels}",
    )


def _announce(config: ResolvedConfig, address: str) -> None:
    what = f"{config.served_model_name}, requests of up to {config.max_model_len:,} tokens"
    # Nobody may read it, or its disk may be full: the server answers all the same.
    with suppress(OSError):
        notes().print(
            f"Milepost answers at {address}/v1: {what} (Ctrl-C ends it).", markup=False, soft_wrap=True
        )
