"""Waves: experts in groups, so that the next group's tokens travel while this one's are computed.

DeepSeek's Mega MoE (DeepGEMM, `csrc/jit_kernels/heuristics/mega_moe.hpp` in its first versions; later ones
choose tiles in another way) decides so, for e tokens an expert and d the experts' intermediate width:

    rows of a tile      16 up to e = 8.5, 32 to 16.5, 64 to 32.5, 96 to 64.5, 128 to 96.5, else 192
    tiles of an expert  ceil(e / rows) * 2 d / 128          its gate and up products, 128 columns a tile
    experts a wave      the fewest whose tiles are 2 for each SM, then up to the next divisor of the rank's
                        experts; all of them below one token an expert

Communication hides when compute / bandwidth <= 6 h d / 3 h = 2 d FLOP/byte: three products of h d against one
byte out (fp8) and two back (bf16) for each element of the width h, which cancels, so a latent's width does
not matter (DeepSeek-V4 report, section 3.1). With r = communication / computing, one part after the other
takes 1 + r; in waves max(1, r) and one wave of the shorter part to fill and drain: min(1, r) / waves. Comet
(arXiv:2502.19811) overlaps in two halves: dispatch with the first product, the second with combine.
"""

from __future__ import annotations

import msgspec

from milepost.planner.worksheet import Worksheet

__all__ = ["WaveShape", "note_overlap", "note_waves"]

TILE_COLUMNS = 128
SOURCE = "DeepGEMM, heuristics of Mega MoE"
_ROWS = ((8.5, 16), (16.5, 32), (32.5, 64), (64.5, 96), (96.5, 128))
_MOST_ROWS = 192


class WaveShape(msgspec.Struct, frozen=True, kw_only=True):
    """How a rank's experts are grouped.

    Attributes:
        tokens_per_expert: in the mean.
        tile_rows: tokens of a tile.
        tiles_per_expert: of its first product.
        experts_per_wave: computed together.
        waves: of a layer.
    """

    tokens_per_expert: float
    tile_rows: int
    tiles_per_expert: int
    experts_per_wave: int
    waves: int


def note_waves(sheet: Worksheet, prefix: str, rank_tokens: str, rank_experts: str) -> WaveShape:
    """Waves of a rank, by the names of its tokens and of its experts on the worksheet."""
    rows = "".join(f"{size} if {prefix}.tokens_per_expert <= {most} else " for most, size in _ROWS)
    tokens = sheet.derive(f"{prefix}.tokens_per_expert", f"{rank_tokens} * top_k / {rank_experts}", "tokens")
    sheet.derive(f"{prefix}.tile_rows", f"{rows}{_MOST_ROWS}", "tokens", source=SOURCE)
    sheet.derive(
        f"{prefix}.tiles_per_expert",
        f"ceil(ceil({prefix}.tokens_per_expert) / {prefix}.tile_rows)"
        f" * ceil((expert_matrices - 1) * expert_intermediate / {TILE_COLUMNS})",
        "tiles",
        source=SOURCE,
    )
    need = sheet.derive(
        f"{prefix}.experts_needed",
        f"{rank_experts} if {prefix}.tokens_per_expert < 1 else "
        f"min({rank_experts}, ceil(2 * device.sms / {prefix}.tiles_per_expert))",
        "experts",
        meaning="whose tiles are two for each SM",
        source=SOURCE,
    )
    held = int(sheet[rank_experts])
    size = next(count for count in range(max(1, int(need)), held + 1) if held % count == 0)
    sheet.given(
        f"{prefix}.experts_per_wave",
        size,
        "experts",
        f"the smallest divisor of {rank_experts} that is at least {prefix}.experts_needed; {SOURCE}",
    )
    sheet.derive(f"{prefix}.waves", f"{rank_experts} // {prefix}.experts_per_wave", "waves")
    return WaveShape(
        tokens_per_expert=float(tokens),
        tile_rows=int(sheet[f"{prefix}.tile_rows"]),
        tiles_per_expert=int(sheet[f"{prefix}.tiles_per_expert"]),
        experts_per_wave=size,
        waves=int(sheet[f"{prefix}.waves"]),
    )


def note_overlap(sheet: Worksheet, prefix: str) -> None:
    """Times of dispatch, experts and combine, overlapped by halves (Comet) and in waves.

    Reads what `milepost.planner.moe.step.note_step` and `note_waves` derive.
    """
    experts, exchange = f"{prefix}.experts.seconds", f"{prefix}.exchange.seconds"
    sheet.derive(
        f"{prefix}.exchange_ratio", f"{exchange} / {experts}", "", meaning="r: communication / computing"
    )
    first = f"{experts} * (expert_matrices - 1) / expert_matrices"
    sheet.derive(
        f"{prefix}.halves.seconds",
        f"max({prefix}.dispatch.seconds, {first})"
        f" + max({experts} / expert_matrices, {prefix}.combine.seconds)",
        "seconds",
        meaning="dispatch beside the first product, combine beside the second",
        source="Comet, arXiv:2502.19811",
    )
    sheet.derive(
        f"{prefix}.waved.seconds",
        f"max({experts}, {exchange}) + min({experts}, {exchange}) / {prefix}.waves",
        "seconds",
        meaning="the longer of both, and one wave of the shorter",
        source="DeepSeek-V4 report, section 3.1",
    )
    sheet.derive(f"{prefix}.waves_gain", f"{prefix}.serial.seconds / {prefix}.waved.seconds", "")
    sheet.derive(f"{prefix}.halves_gain", f"{prefix}.serial.seconds / {prefix}.halves.seconds", "")
