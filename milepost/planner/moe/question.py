"""What is asked about expert parallelism, and what can't be asked."""

from __future__ import annotations

from typing import Literal

import msgspec

from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.planner.deployment import Deployment
from milepost.planner.limits import check_within

__all__ = ["ITEM_BYTES", "PLACEMENTS", "SENDS", "MoeQuestion", "Placement", "Send", "check_question"]

ITEM_BYTES: dict[str, int | float] = {
    "fp8": 1,
    "bf16": 2,
    "fp32": 4,
    "mxfp8": 1 + 1 / 32,
    "mxfp4": 0.5 + 1 / 32,
    "nvfp4": 0.5 + 1 / 16,
}
"""Bytes of an element that is dispatched or combined; mx and nv dtypes with their scales."""

Placement = Literal["numbered", "balanced", "replicated"]
PLACEMENTS: tuple[Placement, ...] = ("numbered", "balanced", "replicated")
"""Experts on ranks by their numbers; by their load; by their load, and the hottest more than once."""

Send = Literal["pairs", "ranks"]
SENDS: tuple[Send, ...] = ("pairs", "ranks")
"""A token is sent once for each of its experts, or once to each rank that holds some of them."""

MOST_TOKENS = 1 << 24
MOST_SMS = 1 << 16
MOST_REDUNDANT = 1 << 6
"""Of a rank: one or two are usual, and slots of all ranks are drawn one by one."""
MOST_RANKS = 1 << 14


class MoeQuestion(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked.

    Attributes:
        deployment: the model on hardware, and its ranks. With `data_parallel` of 0 the fewest groups whose
            ranks hold the weights; with `expert_parallel` of 0 the degree is what is looked for.
        decode_tokens: tokens that one group of tensor-parallel ranks computes in a decoding step.
        prefill_tokens: tokens that one group computes in a step of prefill.
        dispatch_dtype: of what goes to the experts; of `ITEM_BYTES`.
        combine_dtype: of what comes back.
        send: whether a token goes out once an expert ("pairs", as the published figures count and Mega MoE
            sends) or once a rank ("ranks", as DeepEP).
        load: how often experts are chosen: "uniform", "zipf(S)" or the path of a file with counts.
        placement: which experts lie on which rank; of `PLACEMENTS`.
        redundant_per_rank: further experts that a rank holds where the placement is "replicated".
        overlap: whether the degree is chosen by times with waves instead of one part after the other.
        multicast: whether a device can store to all others of its domain at once, as over NVSwitch (NVLS),
            which LatentMoE's "scattered" tail needs; None for what the hardware's description suggests.
        sms: streaming multiprocessors of a device, for waves; 0 for the hardware's.
        seed: of the draws of expert loads.
    """

    deployment: Deployment = Deployment()
    decode_tokens: int = 64
    prefill_tokens: int = 8192
    dispatch_dtype: str = "fp8"
    combine_dtype: str = "bf16"
    send: str = "pairs"
    load: str = "uniform"
    placement: str = "numbered"
    redundant_per_rank: int = 1
    overlap: bool = False
    multicast: bool | None = None
    sms: int = 0
    seed: int = 0


def check_question(question: MoeQuestion) -> None:
    """Refuse words and numbers that have no meaning.

    Raises:
        ConfigError: the first of them, with what it may be.
    """
    for option, word, known in (
        ("dispatch_dtype", question.dispatch_dtype, ITEM_BYTES),
        ("combine_dtype", question.combine_dtype, ITEM_BYTES),
        ("send", question.send, SENDS),
        ("placement", question.placement, PLACEMENTS),
    ):
        if word not in known:
            raise ConfigError(one_of(option, word, known))
    for option, value, least, most in (
        ("decode_tokens", question.decode_tokens, 1, MOST_TOKENS),
        ("prefill_tokens", question.prefill_tokens, 1, MOST_TOKENS),
        ("redundant_per_rank", question.redundant_per_rank, 1, MOST_REDUNDANT),
        ("sms", question.sms, 0, MOST_SMS),
        ("seed", question.seed, 0, (1 << 63) - 1),
        ("tensor_parallel", question.deployment.tensor_parallel, 1, MOST_RANKS),
        ("data_parallel", question.deployment.data_parallel, 0, MOST_RANKS),
        ("expert_parallel", question.deployment.expert_parallel, 0, MOST_RANKS),
    ):
        check_within(option, value, least, most)
