"""Initial weights that already look up what followed a like context.

A short training from random weights spends most of its tokens on finding one circuit: carry the last few
tokens along, match the present context with an earlier one, and say what came next there. Here the residual
stream starts with five slots of 24 channels::

    this token | 1 back | 2 back | 3 back | answer

Layer 1's KDA heads fill the three "back" slots: their convolutions shift by one, two and three tokens, and
their decay forgets all else at once. Every MLA layer compares "this" with "1 back" and "2 back" with "3 back"
and writes the token it finds into "answer", which is what the output head reads. One head of layer 2 recalls
what was asked for when an answer begins. All of it is only where training starts from; nothing is frozen.
"""

import math

import torch
from torch import Tensor, nn

from training.attention import GatedMLA, KimiDeltaAttention, ShortConv
from training.model import KimiK3ForConditionalGeneration
from training.tokenizer import ToyTokenizer

SLOT = 24
_ANSWER = 4
_MATCH = 20
"""Channels in which two tokens are compared."""
_SHARPNESS = 1.5
_SMALL = 0.1


@torch.no_grad()
def install(model: KimiK3ForConditionalGeneration, tokenizer: ToyTokenizer) -> None:
    """Overwrite the weights of a fresh model."""
    decoder, head = model.language_model.model, model.language_model.lm_head
    tokens = torch.randn(model.config.vocab_size, SLOT)
    decoder.embed_tokens.weight.normal_(std=0.02)
    decoder.embed_tokens.weight[:, _slot(0)] = tokens
    head.weight.normal_(std=0.02)
    head.weight[:, _slot(_ANSWER)] = 0.3 * tokens

    _quieten(model)
    compare = nn.init.orthogonal_(torch.empty(_MATCH, SLOT))
    for index, layer in enumerate(decoder.layers):
        attention = layer.self_attn
        if isinstance(attention, GatedMLA):
            _look_up(attention, compare)
        elif isinstance(attention, KimiDeltaAttention):
            _match_equals(attention)
            if index == 0:
                _carry_tokens(attention)
            elif index == 1:
                asked_after, at = tokenizer.encode(" for")[-1], tokenizer.encode("response")[-1]
                _fetch_asked(attention, tokens[asked_after], tokens[at])


def _slot(number: int) -> slice:
    return slice(number * SLOT, (number + 1) * SLOT)


def _quieten(model: nn.Module) -> None:
    """Make everything else add little to the stream, and gates start half open."""
    outputs = ("o_proj.weight", "down_proj.weight", "routed_expert_up_proj.weight", "g_proj.weight")
    for name, parameter in model.named_parameters():
        if name.endswith(outputs) and "routed_expert_down_proj" not in name:
            parameter.mul_(_SMALL)


def _match_equals(attention: KimiDeltaAttention) -> None:
    """Equal query and key maps, linear enough under SiLU that unlike tokens stay near orthogonal."""
    attention.k_proj.weight.copy_(attention.q_proj.weight)
    lean(attention.q_conv1d, 0, slice(None), _SMALL)
    lean(attention.k_conv1d, 1, slice(None), _SMALL)
    lean(attention.v_conv1d, 0, slice(None), 1.0)


def _carry_tokens(attention: KimiDeltaAttention) -> None:
    """Heads 1, 2 and 3 write the token that many positions back into its slot."""
    dim = attention.head_dim
    for back in (1, 2, 3):
        channels, used = slice(back * dim, (back + 1) * dim), slice(back * dim, back * dim + SLOT)
        lean(attention.k_conv1d, 0, channels, _SMALL)
        lean(attention.v_conv1d, back, channels, 1.0)
        attention.dt_bias[channels] = 4.0  # forget everything but this token
        attention.v_proj.weight[channels] = 0
        attention.v_proj.weight[used, _slot(0)] = _SMALL * torch.eye(SLOT)
        attention.o_proj.weight[:, channels] = 0
        attention.o_proj.weight[_slot(back), used] = 2 * torch.eye(SLOT)


def _fetch_asked(attention: KimiDeltaAttention, asked_after: Tensor, at: Tensor) -> None:
    """Head 0 remembers the last word after the token ``asked_after`` and recalls it one token after ``at``.

    The recalled word goes to the slot "2 back", where the next look-up takes it for the key of a code. The
    delta rule overwrites, so that the latest question counts.

    Args:
        attention: A KDA layer after the one that carries tokens.
        asked_after: [SLOT], an embedding's first slot.
        at: [SLOT], likewise.
    """
    channels, used = slice(attention.head_dim), slice(SLOT)
    weight = torch.randn(attention.head_dim, SLOT) * SLOT**-0.5
    recall = torch.outer(weight @ asked_after, at) / at.square().sum()
    for projection in (attention.q_proj, attention.k_proj, attention.v_proj, attention.g_proj):
        projection.weight[channels] = 0
    attention.q_proj.weight[channels, _slot(0)] = 0.3 * weight
    attention.q_proj.weight[channels, _slot(1)] = 2 * recall
    attention.k_proj.weight[channels, _slot(0)] = weight
    attention.v_proj.weight[used, _slot(0)] = _SMALL * torch.eye(SLOT)
    lean(attention.q_conv1d, 0, channels, _SMALL)
    lean(attention.k_conv1d, 1, channels, _SMALL)
    lean(attention.v_conv1d, 0, channels, 1.0)
    attention.b_proj.weight[0] = 0
    attention.f_b_proj.weight[channels] = 0
    attention.dt_bias[channels] = -7.0  # remember for hundreds of tokens
    attention.o_proj.weight[:, channels] = 0
    attention.o_proj.weight[_slot(2), used] = 2 * torch.eye(SLOT)


def _look_up(attention: GatedMLA, compare: Tensor) -> None:
    """Two kinds of match, three heads: the last token, the last but two, and both."""
    config = attention.config
    nope, heads = config.qk_nope_head_dim, config.num_attention_heads
    first, second = slice(_MATCH), slice(_MATCH, 2 * _MATCH)
    value = slice(2 * _MATCH, 2 * _MATCH + SLOT)

    attention.q_a_proj.weight.mul_(_SMALL)
    attention.q_a_proj.weight[first, _slot(0)] = compare
    attention.q_a_proj.weight[second, _slot(2)] = compare
    attention.kv_a_proj_with_mqa.weight[: config.kv_lora_rank] = 0
    attention.kv_a_proj_with_mqa.weight[first, _slot(1)] = compare
    attention.kv_a_proj_with_mqa.weight[second, _slot(3)] = compare
    attention.kv_a_proj_with_mqa.weight[value, _slot(0)] = torch.eye(SLOT)

    q_b = attention.q_b_proj.weight.view(heads, attention.query_dim, -1)
    kv_b = attention.kv_b_proj.weight.view(heads, nope + config.v_head_dim, -1)
    spread = _SHARPNESS * nn.init.orthogonal_(torch.empty(nope, _MATCH))
    for head, parts in enumerate(((first,), (second,), (first, second))):
        q_b[head].mul_(_SMALL)
        kv_b[head] = 0
        for part in parts:
            q_b[head, :nope, part] = spread / math.sqrt(len(parts))
            kv_b[head, :nope, part] = spread / math.sqrt(len(parts))
        kv_b[head, nope : nope + SLOT, value] = torch.eye(SLOT)
        start = head * config.v_head_dim
        attention.o_proj.weight[_slot(_ANSWER), start : start + SLOT] = torch.eye(SLOT)


@torch.no_grad()
def lean(conv: ShortConv, back: int, channels: slice, scale: float) -> None:
    """Let ``channels`` of a convolution carry mostly the token ``back`` positions ago."""
    taps = conv.weight[channels, 0]
    taps.uniform_(-0.05 * scale, 0.05 * scale)
    taps[:, taps.shape[1] - 1 - back] = scale
