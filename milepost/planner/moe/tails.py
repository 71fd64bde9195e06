"""The three ends of a LatentMoE layer under tensor parallelism: what each moves, computes and takes.

After the experts every rank holds two partial sums: the routed latent [M, l] and the shared experts' output
[M, h]. Wanted is W_up norm(sum of latents) + sum of shared, on every rank. The norm stands between, so the
latent is reduced first in all three (Kimi K3 report, arXiv:2607.24653; vLLM, `models/kimi_k3/nvidia`, its
`latent_moe_runner.py` with three tiers and `ops/latent_moe_tail.py`):

    replicated   all-reduce of the latent; the whole up-projection on each rank beside the all-reduce of the
                 shared partial; add                                                       (vLLM tier 1)
    scattered    one kernel: all-reduce of the latent beside reduce-scatter of the shared partial; a rank's
                 columns of the up-projection, stored to all ranks as they are made (multicast); copy out
                                                                                           (vLLM tier 0)
    summed       all-reduce of the latent; a rank's columns, added to its shared partial; one all-reduce of
                 [M, h]                                                                    (vLLM tier 2)

t ranks, b bytes. An all-reduce is one shot (a latency, (t-1) b received) or two (two latencies, 2 (t-1)/t b),
whichever is quicker; a reduce-scatter or gather is one shot of (t-1)/t b. A kernel that is no collective
takes `kernel_seconds` more than its work.
"""

from __future__ import annotations

import msgspec

from milepost.planner.worksheet import Worksheet

__all__ = ["TAILS", "TailCost", "TailTimes", "note_all_reduce", "note_tail_facts", "note_tails"]

TAILS = {
    "replicated": "all-reduce, whole up-projection on each rank",
    "scattered": "reduce-scatter, up-projection by columns, gather",
    "summed": "up-projection by columns, one all-reduce of the sum",
}
"""Names and what they do."""
ITEM = 2
SOURCE = "vLLM, latent_moe_tail and the tiers of its runner"


class TailCost(msgspec.Struct, frozen=True, kw_only=True):
    """One tail on one rank.

    Attributes:
        name: of `TAILS`.
        network_bytes: received from other ranks.
        flops: floating-point operations.
        memory_bytes: weights and activations read and written.
        seconds: from the experts' end to the sum on every rank.
    """

    name: str
    network_bytes: float
    flops: float
    memory_bytes: float
    seconds: float


class TailTimes(msgspec.Struct, frozen=True, kw_only=True):
    """The three tails for one number of tokens.

    Attributes:
        ranks: that share the heads.
        tokens: of the step.
        tails: of each kind.
        best: name of the quickest.
        best_without_multicast: the same without "scattered", which needs stores to all ranks at once.
    """

    ranks: int
    tokens: int
    tails: tuple[TailCost, ...]
    best: str
    best_without_multicast: str

    def winner(self, *, multicast: bool) -> str:
        """The quickest tail on hardware with multicast stores, or without."""
        return self.best if multicast else self.best_without_multicast


def note_tail_facts(sheet: Worksheet, group: str, ranks: int) -> None:
    """What does not depend on tokens, under the prefix `group`: links among `ranks` ranks, weights."""
    sheet.given(f"{group}.ranks", ranks, "ranks", "tensor parallel degree")
    within = f"{group}.ranks <= device.domain"
    sheet.derive(f"{group}.link", f"rate.link if {within} else min(rate.link, rate.scale_out)", "bytes/s")
    sheet.derive(
        f"{group}.latency",
        f"device.link_latency if {within} else max(device.link_latency, device.scale_out_latency)",
        "seconds",
    )
    sheet.derive(
        f"{group}.up_bytes", f"{ITEM} * expert_width * hidden_size", "bytes", meaning="weights of W_up"
    )


def note_tails(sheet: Worksheet, group: str, prefix: str, tokens: int) -> TailTimes:
    """The three tails of `tokens` tokens among the ranks of `group`, under the prefix `prefix`."""
    sheet.given(f"{prefix}.tokens", tokens, "tokens", "of the step")
    for name, width in (("latent", "expert_width"), ("hidden", "hidden_size")):
        sheet.derive(f"{prefix}.{name}_bytes", f"{ITEM} * {prefix}.tokens * {width}", "bytes")
        note_all_reduce(sheet, group, f"{prefix}.reduce_{name}", f"{prefix}.{name}_bytes")
    _note_up(sheet, group, prefix)
    _note_replicated(sheet, prefix)
    _note_scattered(sheet, group, prefix)
    _note_summed(sheet, group, prefix)
    found = tuple(
        TailCost(
            name=name,
            network_bytes=float(sheet[f"{prefix}.{name}.network_bytes"]),
            flops=float(sheet[f"{prefix}.{name}.flops"]),
            memory_bytes=float(sheet[f"{prefix}.{name}.memory_bytes"]),
            seconds=float(sheet[f"{prefix}.{name}.seconds"]),
        )
        for name in TAILS
    )
    return TailTimes(
        ranks=int(sheet[f"{group}.ranks"]),
        tokens=tokens,
        tails=found,
        best=_quickest(found).name,
        best_without_multicast=_quickest(tuple(one for one in found if one.name != "scattered")).name,
    )


def _quickest(tails: tuple[TailCost, ...]) -> TailCost:
    """The tail that takes least; the first of equal ones."""
    return min(tails, key=lambda tail: tail.seconds)


def note_all_reduce(sheet: Worksheet, group: str, name: str, size: str) -> None:
    """Bytes and seconds of an all-reduce of `size` among the ranks of `group`: one shot or two."""
    one = f"{group}.latency + ({group}.ranks - 1) * {size} / {group}.link"
    two = f"2 * {group}.latency + 2 * ({group}.ranks - 1) / {group}.ranks * {size} / {group}.link"
    sheet.derive(f"{name}.one_shot_seconds", one, "seconds")
    sheet.derive(f"{name}.two_shot_seconds", two, "seconds")
    sheet.derive(f"{name}.seconds", f"min({name}.one_shot_seconds, {name}.two_shot_seconds)", "seconds")
    sheet.derive(
        f"{name}.bytes",
        f"({group}.ranks - 1) * {size} if {name}.one_shot_seconds <= {name}.two_shot_seconds else "
        f"2 * ({group}.ranks - 1) / {group}.ranks * {size}",
        "bytes",
        meaning="received by a rank",
    )


def _note_up(sheet: Worksheet, group: str, prefix: str) -> None:
    """The up-projection, whole and by columns."""
    sheet.derive(f"{prefix}.up.flops", f"2 * {prefix}.tokens * expert_width * hidden_size", "FLOP")
    sheet.derive(
        f"{prefix}.up.whole_bytes",
        f"{group}.up_bytes + {prefix}.latent_bytes + {prefix}.hidden_bytes",
        "bytes",
    )
    sheet.derive(
        f"{prefix}.up.column_bytes",
        f"({group}.up_bytes + {prefix}.hidden_bytes) / {group}.ranks + {prefix}.latent_bytes",
        "bytes",
    )
    sheet.derive(
        f"{prefix}.up.whole_seconds",
        f"max({prefix}.up.flops / rate.bf16, {prefix}.up.whole_bytes / rate.memory)",
        "seconds",
    )
    sheet.derive(
        f"{prefix}.up.column_seconds",
        f"max({prefix}.up.flops / {group}.ranks / rate.bf16, {prefix}.up.column_bytes / rate.memory)",
        "seconds",
    )


def _note(sheet: Worksheet, name: str, formulas: dict[str, str]) -> None:
    units = {"network_bytes": "bytes", "flops": "FLOP", "memory_bytes": "bytes", "seconds": "seconds"}
    for part, formula in formulas.items():
        sheet.derive(f"{name}.{part}", formula, units[part], source=SOURCE)


def _note_replicated(sheet: Worksheet, p: str) -> None:
    _note(
        sheet,
        f"{p}.replicated",
        {
            "network_bytes": f"{p}.reduce_latent.bytes + {p}.reduce_hidden.bytes",
            "flops": f"{p}.up.flops",
            "memory_bytes": f"{p}.up.whole_bytes + 3 * {p}.hidden_bytes",
            "seconds": f"{p}.reduce_latent.seconds"
            f" + max(device.kernel_seconds + {p}.up.whole_seconds, {p}.reduce_hidden.seconds)"
            f" + device.kernel_seconds + 3 * {p}.hidden_bytes / rate.memory",
        },
    )


def _note_scattered(sheet: Worksheet, group: str, p: str) -> None:
    part = f"({group}.ranks - 1) / {group}.ranks * {p}.hidden_bytes"
    sheet.derive(f"{p}.part_bytes", part, "bytes", meaning="of a reduce-scatter or a gather of [M, hidden]")
    _note(
        sheet,
        f"{p}.scattered",
        {
            "network_bytes": f"{p}.reduce_latent.bytes + 2 * {p}.part_bytes",
            "flops": f"{p}.up.flops / {group}.ranks",
            "memory_bytes": f"{p}.up.column_bytes + 2 * {p}.hidden_bytes",
            # The links carry both collectives of the first kernel; the copy waits for the last store.
            "seconds": f"{p}.reduce_latent.seconds + {p}.part_bytes / {group}.link + device.kernel_seconds"
            f" + max({p}.up.column_seconds, {p}.part_bytes / {group}.link)"
            f" + {group}.latency + 2 * {p}.hidden_bytes / rate.memory",
        },
    )


def _note_summed(sheet: Worksheet, group: str, p: str) -> None:
    _note(
        sheet,
        f"{p}.summed",
        {
            "network_bytes": f"{p}.reduce_latent.bytes + {p}.reduce_hidden.bytes",
            "flops": f"{p}.up.flops / {group}.ranks",
            "memory_bytes": f"{p}.up.column_bytes + {p}.hidden_bytes / {group}.ranks",
            "seconds": f"{p}.reduce_latent.seconds + device.kernel_seconds + {p}.up.column_seconds"
            f" + {p}.hidden_bytes / {group}.ranks / rate.memory + {p}.reduce_hidden.seconds",
        },
    )
