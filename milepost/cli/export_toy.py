"""``milepost export-toy``: write a small random checkpoint in the published layout."""

from __future__ import annotations

from pathlib import Path

import click

from milepost.cli.options import examples
from milepost.model_spec import ModelFamily

__all__ = ["export_toy"]


@click.command(
    "export-toy",
    epilog=examples(
        "milepost export-toy toy-k3",
        "milepost export-toy toy-linear --family kimi_linear --seed 3",
        "milepost inspect toy-linear",
    ),
)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--family",
    type=click.Choice([family.value for family in ModelFamily]),
    default=ModelFamily.KIMI_K3.value,
    show_default=True,
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the weights.")
@click.option("--shards", type=int, default=2, show_default=True, help="Number of safetensors files.")
def export_toy(*, folder: Path, family: str, seed: int, shards: int) -> None:
    """Write a random toy checkpoint to FOLDER, which must not exist.

    It has the tensor names, dtypes, packed experts and tokenizer files of a published checkpoint, and is
    written whole or not at all.
    """
    from milepost.testing.toy_checkpoint import write_toy_checkpoint  # loads torch

    written = write_toy_checkpoint(folder, ModelFamily(family).value, seed, shards=shards)
    click.echo(f"Wrote {written}.", err=True)
