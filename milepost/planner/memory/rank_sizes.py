"""Bytes of a state and of a token on one rank, of any model, with the formulas behind them."""

from __future__ import annotations

import msgspec

from milepost.planner.deployment import Deployment
from milepost.planner.worksheet import Worksheet
from milepost.shapes.shape import AttentionShape, ModelShape, RecurrentShape

__all__ = ["CONV_ITEMSIZE", "RankBytes", "rank_bytes", "rank_shape"]

CONV_ITEMSIZE = 2
"""Bytes of an element of a convolution's window: the model's dtype, bf16."""


class RankBytes(msgspec.Struct, frozen=True, kw_only=True):
    """What one sequence takes on one rank, before any layout.

    Attributes:
        state_bytes: of a whole state; 0 without recurrent layers.
        layer_state_bytes: of one recurrent layer's state.
        row_bytes: one token's row in one attention layer, on a rank that holds it.
        token_bytes: a token's rows in all attention layers, on a rank that holds it.
        kv_bytes_per_token: what a token of a sequence takes on a rank on average: `token_bytes` divided among
            the ranks that share a context.
        all_attention_kv_bytes_per_token: the same if every recurrent layer were an attention layer, as in a
            model of the same depth that keeps no state; 0 without attention layers.
    """

    state_bytes: int
    layer_state_bytes: int
    row_bytes: int
    token_bytes: int
    kv_bytes_per_token: float
    all_attention_kv_bytes_per_token: float


def rank_shape(shape: ModelShape, deployment: Deployment, drafts: int) -> ModelShape:
    """The model as the layouts of one rank are to see it.

    Ranks that share a context hold the same heads of other tokens, so heads of keys and values are divided
    among the remaining ones; a step that drafts tokens keeps an input of the convolution for each.
    """
    attention, recurrent = shape.attention, shape.recurrent
    if attention is not None:
        sharing = deployment.tensor_parallel // deployment.context_parallel
        row_dim = attention.rank_row_dim(sharing)
        attention = msgspec.structs.replace(attention, kv_heads=1, row_dim=row_dim)
    if recurrent is not None and recurrent.conv_window:
        recurrent = msgspec.structs.replace(recurrent, conv_window=recurrent.conv_window + drafts)
    return msgspec.structs.replace(shape, attention=attention, recurrent=recurrent)


def rank_bytes(sheet: Worksheet, model: str, shape: ModelShape, deployment: Deployment) -> RankBytes:
    """Bytes of a state and of a token.

    Args:
        sheet: gets the numbers and formulas.
        model: its name, for sources.
        shape: the model as `rank_shape` gives it.
        deployment: how it is divided, and the dtypes.

    Raises:
        ConfigError: an unknown dtype.
    """
    config = f"config.json of {model}"
    sheet.given("tensor_parallel", deployment.tensor_parallel, "ranks", "--tp")
    sheet.given("context_parallel", deployment.context_parallel, "ranks", "--cp")
    sheet.given("recurrent_layers", shape.recurrent_layers, "layers", config, "layers that keep a state")
    sheet.given(
        "attention_layers", shape.attention_layers, "layers", config, "layers that keep a row a token"
    )
    _state(sheet, config, shape.recurrent, deployment)
    _token(sheet, config, shape.attention, deployment)
    return RankBytes(
        state_bytes=int(sheet["state_bytes"]),
        layer_state_bytes=int(sheet["layer_state_bytes"]),
        row_bytes=int(sheet["row_bytes"]),
        token_bytes=int(sheet["token_bytes"]),
        kv_bytes_per_token=sheet["kv_bytes_per_token"],
        all_attention_kv_bytes_per_token=sheet["all_attention.kv_bytes_per_token"],
    )


def _state(sheet: Worksheet, config: str, layer: RecurrentShape | None, deployment: Deployment) -> None:
    itemsize = deployment.state_itemsize
    if layer is None or not sheet["recurrent_layers"]:
        sheet.given("layer_state_bytes", 0, "bytes", config, "no layer keeps a state")
    else:
        channels = layer.conv_channels(deployment.tensor_parallel)
        sheet.given("state.heads", layer.heads, "heads", config)
        sheet.given("state.rows", layer.rows, "", config, "rows of a head's matrix: the width of its value")
        sheet.given("state.row_dim", layer.row_dim, "", config, "elements of a row: the width of its key")
        sheet.given("state.itemsize", itemsize, "bytes", f"--state-dtype {deployment.state_dtype}")
        sheet.given("conv.window", layer.conv_window, "inputs", f"{config}, and --drafts", "past inputs kept")
        sheet.given("conv.channels", channels, "", config, "of the rank: values, queries and keys")
        sheet.given("conv.itemsize", CONV_ITEMSIZE, "bytes", "the model's dtype, bf16")
        sheet.derive(
            "layer_state_bytes",
            "state.heads // tensor_parallel * state.rows * state.row_dim * state.itemsize"
            " + conv.window * conv.channels * conv.itemsize",
            "bytes",
            meaning="matrices and convolution window of one recurrent layer, on one rank",
        )
    sheet.derive(
        "state_bytes", "recurrent_layers * layer_state_bytes", "bytes", meaning="of a state on one rank"
    )


def _token(sheet: Worksheet, config: str, layer: AttentionShape | None, deployment: Deployment) -> None:
    itemsize = deployment.kv_itemsize
    if layer is None or not sheet["attention_layers"]:
        sheet.given("row_bytes", 0, "bytes", config, "no layer keeps a row a token")
    else:
        sheet.given("kv.row_dim", layer.row_dim, "", config, "elements of a token's row on the rank")
        sheet.given("kv.itemsize", itemsize, "bytes", f"--kv-dtype {deployment.kv_dtype}")
        sheet.derive("row_bytes", "kv.row_dim * kv.itemsize", "bytes", meaning="a token in one layer")
    sheet.derive(
        "token_bytes", "attention_layers * row_bytes", "bytes", meaning="a token on a rank that holds it"
    )
    sheet.derive(
        "kv_bytes_per_token",
        "token_bytes / context_parallel if context_parallel > 1 else token_bytes",
        "bytes/token",
        meaning="of a sequence, on one rank",
    )
    sheet.derive(
        "all_attention.kv_bytes_per_token",
        "(recurrent_layers + attention_layers) * row_bytes / context_parallel if context_parallel > 1"
        " else (recurrent_layers + attention_layers) * row_bytes",
        "bytes/token",
        meaning="if every layer that keeps a state kept rows instead",
    )
