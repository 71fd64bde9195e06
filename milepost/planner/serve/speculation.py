"""Speculative decoding in numbers: tokens won a step, states that drafts need, what the draft model takes.

A step verifies 1 + K tokens a row: the last accepted one and K drafts. With position i accepted in a share
p_i of the steps it yields 1 + sum p_i tokens in the mean. A recurrent state can't be cut back as KV rows can;
three designs are in use, here with the bytes of one sequence, S a state, R what one token leaves behind for
its update to be repeated (the correction or the value, key and decay of every head, bf16):

                 memory          read and written in a step beyond the S + S of a step without drafts
    snapshots    (1 + K) S       K S: the state is written after every token
    replay       S + (1 + K) R   S + 2 (1 + K) R: verify reads S and writes R; a commit reads both, writes S
    fused        S + (1 + K) R   2 (1 + K) R: the next step's kernel repeats what was accepted as it starts

The convolution's window keeps K more columns in each. Snapshots are vLLM's and ATOM's default, replay is
vLLM's RecoverSSM, fused is Moonshot's (Kimi K3 technical report, 5.4.2).
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import msgspec

from milepost.error_text import one_of
from milepost.errors import ConfigError
from milepost.shapes.shape import ModelShape, RecurrentKind
from milepost.sim.cost.part_work import RankSizes

__all__ = [
    "DRAFT_STATES",
    "DraftStates",
    "Speculation",
    "StateBytes",
    "known_draft",
    "replay_token_bytes",
    "state_bytes_of",
]

DraftStates = Literal["snapshots", "replay", "fused"]
DRAFT_STATES: tuple[DraftStates, ...] = get_args(DraftStates)
WINDOW_ITEM = 2  # bytes of a convolution window's element, and of what is kept for a replay: bf16
MOST_DRAFTS = 64
MOST_DRAFT_PARAMETERS = 1e15
MOST_DRAFT_LAYERS = 10_000


class Speculation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Drafts, how many of them are accepted, and what makes them.

    Attributes:
        drafts: tokens proposed a step and row.
        accepted_length: mean tokens of a step and row, the one that is always right among them: 1 to
            1 + drafts.
        draft_parameters: of the draft model without embedding and head, read once a pass; 0 for drafts that
            cost nothing, such as n-grams.
        draft_layers: of the draft model: each is two all-reduces, and keeps a row a token as wide as one of
            the model's attention layers does.
        draft_passes: of the draft model a step: 1 where one pass proposes all (DSpark), `drafts` for one
            after the other (MTP, EAGLE).
        states: how rejected drafts are taken back; see the module.
    """

    drafts: int
    accepted_length: float
    draft_parameters: float = 0.0
    draft_layers: int = 0
    draft_passes: int = 1
    states: DraftStates = "replay"

    @classmethod
    def of_positions(cls, probabilities: tuple[float, ...], **others: object) -> Speculation:
        """From the share of steps in which each position is accepted, first to last.

        Raises:
            ConfigError: none, one outside 0 to 1, or one above that before it: a draft counts only where all
                before it were accepted.
        """
        if not probabilities:
            raise ConfigError("Acceptance needs at least one probability. Given: none.")
        last = 1.0
        for one in probabilities:
            if not 0.0 <= one <= last:  # also refuses NaN
                raise ConfigError(
                    f"Probabilities of acceptance must lie within 0 and 1 and not rise from one position to "
                    f"the next. Given: {', '.join(f'{p:g}' for p in probabilities)}."
                )
            last = one
        fields = {"drafts": len(probabilities), "accepted_length": 1.0 + math.fsum(probabilities), **others}
        return msgspec.convert(fields, cls)

    def __post_init__(self) -> None:
        if not 1 <= self.drafts <= MOST_DRAFTS:
            raise ConfigError(f"drafts must be 1 to {MOST_DRAFTS}. Given: {self.drafts}.")
        if not 1.0 <= self.accepted_length <= 1.0 + self.drafts:
            raise ConfigError(
                f"accepted_length must be 1 to {1 + self.drafts}, all {self.drafts} drafts and one more. "
                f"Given: {self.accepted_length}."
            )
        for name, most in (
            ("draft_parameters", MOST_DRAFT_PARAMETERS),
            ("draft_layers", MOST_DRAFT_LAYERS),
        ):
            value = getattr(self, name)
            if not 0 <= value <= most:  # also refuses NaN
                raise ConfigError(f"{name} must be at least 0 and at most {most:g}. Given: {value}.")
        if not 1 <= self.draft_passes <= self.drafts:
            raise ConfigError(f"draft_passes must be 1 to {self.drafts}. Given: {self.draft_passes}.")
        if self.states not in DRAFT_STATES:
            raise ConfigError(one_of("states", self.states, DRAFT_STATES))

    @property
    def verified(self) -> int:
        """Tokens of a row that a step computes."""
        return 1 + self.drafts


class StateBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Of one sequence's state on one rank.

    Attributes:
        slot_bytes: of one state, the convolution's window with room for the drafts.
        running_bytes: of all that a running sequence needs: with snapshots 1 + K slots.
        step_extra_bytes: read and written in a step beyond one read and one write of the state.
    """

    slot_bytes: float
    running_bytes: float
    step_extra_bytes: float


def state_bytes_of(
    shape: ModelShape, sizes: RankSizes, drafts: int = 0, states: DraftStates = "replay"
) -> StateBytes:
    """What drafts make of a state; without drafts all is one slot.

    Args:
        shape: the model.
        sizes: how it is divided.
        drafts: tokens proposed a step and row.
        states: how rejected drafts are taken back.
    """
    layer = shape.recurrent
    if layer is None:
        return StateBytes(slot_bytes=0.0, running_bytes=0.0, step_extra_bytes=0.0)
    matrices = layer.matrix_elements / sizes.tensor_parallel * sizes.state_itemsize
    columns = layer.conv_window + drafts if layer.conv_window else 0
    window = layer.conv_channels(sizes.tensor_parallel) * columns * WINDOW_ITEM
    slot = shape.recurrent_layers * (matrices + window)
    if not drafts:
        return StateBytes(slot_bytes=slot, running_bytes=slot, step_extra_bytes=0.0)
    if states == "snapshots":
        return StateBytes(slot_bytes=slot, running_bytes=(1 + drafts) * slot, step_extra_bytes=drafts * slot)
    kept = (1 + drafts) * replay_token_bytes(shape, sizes)
    again = slot if states == "replay" else 0.0
    return StateBytes(slot_bytes=slot, running_bytes=slot + kept, step_extra_bytes=again + 2 * kept)


def replay_token_bytes(shape: ModelShape, sizes: RankSizes) -> float:
    """What one drafted token leaves on a rank for its update to be repeated: value, key and decay."""
    layer = shape.recurrent
    if layer is None:
        return 0.0
    # KDA decays each of a key's channels; the others have one decay a head.
    decay = layer.row_dim if layer.kind is RecurrentKind.KDA else 1
    keys = layer.key_heads * layer.row_dim
    elements = layer.heads * (layer.rows + decay) + keys
    return shape.recurrent_layers * elements / sizes.tensor_parallel * WINDOW_ITEM


def known_draft(model: str) -> tuple[float, int]:
    """Parameters and layers of a published draft model; (0, 0) where none is known.

    Kimi K3: Inferact/Kimi-K3-DSpark, 3.56 B parameters in 5 layers beside the embedding that it shares.
    """
    return (3.56e9, 5) if model.lower() == "kimi-k3" else (0.0, 0)
