"""What dispatch and combine send, and which links it takes.

A token-layer is one token in one layer. It goes out to its k experts and comes back from them, at the width
of the experts: k * width * (bytes out + bytes back). LatentMoE (arXiv:2601.18089) sends the latent, so bytes
fall by alpha = hidden / latent, and so do the experts' own bytes. Kimi K3: 16 * 3 * 3,584 = 172 kB against
344 kB.

A rank of E holds 1/E of the experts, so 1/E of what it sends stays on it; (domain - 1)/E goes over the fast
links of its domain, the rest between domains. Experts are taken to lie evenly; what the busiest rank gets is
`max_over_mean` times the mean, and all wait for it. Both kinds of links are used at once.
"""

from __future__ import annotations

import math

from milepost.planner.worksheet import Worksheet

__all__ = ["note_exchange", "note_links", "note_token_bytes", "ranks_reached"]

LATENT_MOE = "LatentMoE, arXiv:2601.18089"


def note_token_bytes(sheet: Worksheet) -> None:
    """Bytes of a token-layer at the experts' width and at the hidden size."""
    both = "top_k * (dispatch.item_bytes + combine.item_bytes)"
    sheet.derive("token_layer_bytes", f"{both} * expert_width", "bytes", source=LATENT_MOE)
    sheet.derive("token_layer_bytes_at_hidden", f"{both} * hidden_size", "bytes", source=LATENT_MOE)
    sheet.derive("latent_saving", "hidden_size / expert_width", "", meaning="alpha", source=LATENT_MOE)
    sheet.derive("token_bytes", "moe_layers * token_layer_bytes", "bytes", meaning="of a token in all layers")
    sheet.derive(
        "balance_point",
        "2 * expert_matrices * expert_intermediate / (dispatch.item_bytes + combine.item_bytes)",
        "FLOP/byte",
        meaning="communication hides below it; with 3 matrices, fp8 out and bf16 back it is 2 d",
        source="DeepSeek-V4 report, section 3.1",
    )
    sheet.derive(
        "balance_point_at_hidden",
        "balance_point * expert_width / hidden_size",
        "FLOP/byte",
        meaning="if tokens were sent at the hidden size",
    )
    sheet.derive("device.balance", "rate.experts / rate.link", "FLOP/byte", meaning="inside a domain")
    sheet.derive(
        "device.scale_out_balance", "rate.experts / rate.scale_out", "FLOP/byte", meaning="beyond it"
    )


def ranks_reached(num_experts: int, top_k: int, ranks: int) -> float:
    """Mean number of ranks that hold some of a token's experts: r (1 - C(N - N/r, k) / C(N, k))."""
    others = num_experts - num_experts / ranks
    missed = 1.0
    for taken in range(top_k):
        missed *= max(0.0, others - taken) / (num_experts - taken)
    return math.fsum([ranks, -ranks * missed])


def note_exchange(sheet: Worksheet, prefix: str, degree: str, *, shared_tokens: bool) -> None:
    """Bytes and time of dispatch and combine of one rank.

    Args:
        sheet: with ``PREFIX.rank_tokens``, ``PREFIX.copies`` and ``PREFIX.max_over_mean``.
        prefix: of the names.
        degree: prefix of what does not depend on the step, such as ``ep8``.
        shared_tokens: all ranks have all tokens, so nothing is dispatched, and the tail adds results up.
    """
    for way in ("dispatch", "combine"):
        name = f"{prefix}.{way}"
        sheet.derive(
            f"{name}.bytes",
            "0"
            if shared_tokens
            else f"{prefix}.rank_tokens * {prefix}.copies * expert_width * {way}.item_bytes",
            "bytes",
            meaning="of one rank, those that stay on it included",
        )
        for part in ("stay", "domain", "cross"):
            sheet.derive(f"{name}.{part}_bytes", f"{name}.bytes * {degree}.{part}_share", "bytes")
        sheet.derive(
            f"{name}.seconds",
            "0"
            if shared_tokens
            else f"{degree}.exchange_latency + {prefix}.max_over_mean * "
            f"max({name}.domain_bytes / rate.link, {name}.cross_bytes / rate.scale_out)",
            "seconds",
            meaning="until the busiest rank is done",
        )


def note_links(sheet: Worksheet, degree: str, ranks: int) -> None:
    """Shares of what a rank sends by where it goes, among `ranks` ranks that hold a copy of the experts."""
    sheet.given(f"{degree}.ranks", ranks, "ranks", "expert parallel degree")
    sheet.derive(f"{degree}.stay_share", f"1 / {degree}.ranks", "")
    sheet.derive(f"{degree}.domain_share", f"(min({degree}.ranks, device.domain) - 1) / {degree}.ranks", "")
    sheet.derive(f"{degree}.cross_share", f"max(0, {degree}.ranks - device.domain) / {degree}.ranks", "")
    sheet.derive(
        f"{degree}.exchange_latency",
        f"0 if {degree}.ranks < 2 else device.exchange_rounds * (device.link_latency"
        f" if {degree}.ranks <= device.domain else max(device.link_latency, device.scale_out_latency))",
        "seconds",
        meaning="of one dispatch or combine: counts, tokens, arrival",
    )
