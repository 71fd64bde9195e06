"""Kimi Delta Attention as plain differentiable torch: the chunked form, and the recurrence it must equal.

Per head and token, with a state ``S`` of shape [K, V] (all in float32)::

    S <- diag(exp g) S                 decay each key channel
    c  = beta * (v - S^T k)            what the state gets wrong about v
    S <- S + k c^T
    o  = S^T q

Inside a chunk of C tokens the corrections solve a C x C triangular system (the "UT transform"), so that a
chunk maps the state affinely: ``S_out = transition @ S_in + update``. Everything but that recurrence over
chunks is batched.
"""

import torch
from torch import Tensor
from torch.nn import functional

from training.autograd import Context, apply

CHUNK = 16
"""Tokens per chunk. K3's ``g`` is above -5 a token, so exponents offset by the middle stay within e^40."""


def recurrent_kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """Run KDA token by token: the oracle of :func:`chunk_kda`.

    Args:
        q: [B, T, H, K], already normalised and scaled.
        k: [B, T, H, K], already normalised.
        v: [B, T, H, V].
        g: [B, T, H, K], log decay, at most 0.
        beta: [B, T, H].

    Returns:
        [B, T, H, V].
    """
    batch, length, heads, key_dim = q.shape
    state = q.new_zeros(batch, heads, key_dim, v.shape[-1])
    outputs = []
    for t in range(length):
        state = state * g[:, t].exp().unsqueeze(-1)
        wrong = v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])
        correction = beta[:, t].unsqueeze(-1) * wrong
        state = state + k[:, t].unsqueeze(-1) * correction.unsqueeze(-2)
        outputs.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(outputs, dim=1)


def chunk_kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, chunk: int = CHUNK) -> Tensor:
    """Run KDA chunk by chunk; arguments and result as in :func:`recurrent_kda`."""
    batch, length = q.shape[:2]
    q, k, v, g = (_to_chunks(x, chunk) for x in (q, k, v, g))
    beta = _to_chunks(beta.unsqueeze(-1), chunk)  # [N, B * H, C, 1]

    decay = g.cumsum(dim=-2)
    middle = decay[..., chunk // 2 : chunk // 2 + 1, :]
    end = decay[..., -1:, :]
    rise, fall = (decay - middle).exp(), (middle - decay).exp()
    from_start = middle.exp()  # turns "since the middle" into "since the start"
    k_rise, k_fall, q_rise = k * rise, k * fall, q * rise

    inverse = _unit_lower_inverse(torch.tril(beta * (k_rise @ k_fall.mT), -1))
    scores = torch.tril(q_rise @ k_fall.mT)
    solve = inverse * beta.mT
    w = solve @ (k_rise * from_start)
    u = solve @ v
    k_end = (k_fall * (end - middle).exp()).mT  # [N, B * H, K, C]

    transition = torch.diag_embed(end.squeeze(-2).exp()) - k_end @ w
    states = apply(_AffineScan, transition, k_end @ u)
    out = (q_rise * from_start) @ states + scores @ (u - w @ states)
    return _from_chunks(out, batch)[:, :length]


def _to_chunks(x: Tensor, chunk: int) -> Tensor:
    """[B, T, H, D] -> [N, B * H, C, D], padding T with zeros (they change no state and come last)."""
    batch, length, heads, dim = x.shape
    padding = -length % chunk
    if padding:
        x = functional.pad(x, (0, 0, 0, 0, 0, padding))
    chunks = x.reshape(batch, -1, chunk, heads, dim)
    return chunks.permute(1, 0, 3, 2, 4).reshape(-1, batch * heads, chunk, dim)


def _from_chunks(x: Tensor, batch: int) -> Tensor:
    """[N, B * H, C, D] -> [B, N * C, H, D]."""
    count, _, chunk, dim = x.shape
    return x.view(count, batch, -1, chunk, dim).permute(1, 0, 3, 2, 4).reshape(batch, count * chunk, -1, dim)


def _unit_lower_inverse(lower: Tensor) -> Tensor:
    """(I + lower)^-1 of strictly lower triangular matrices, by squaring: (I - L)(I + L^2)(I + L^4)..."""
    size = lower.shape[-1]
    eye = torch.eye(size, dtype=lower.dtype, device=lower.device)
    inverse, power, reach = eye - lower, lower, 2
    while reach < size:
        power = power @ power
        inverse = inverse + inverse @ power
        reach *= 2
    return inverse


class _AffineScan(torch.autograd.Function):
    """``S[n+1] = A[n] @ S[n] + B[n]`` from ``S[0] = 0`` on; returns the state *before* each chunk."""

    @staticmethod
    def forward(ctx: Context, transition: Tensor, update: Tensor) -> Tensor:
        """Args: transition [N, M, K, K], update [N, M, K, V]. Returns [N, M, K, V]."""
        states = torch.zeros_like(update)
        for n in range(len(update) - 1):
            torch.baddbmm(update[n], transition[n], states[n], out=states[n + 1])
        ctx.save_for_backward(transition, states)
        return states

    @staticmethod
    def backward(ctx: Context, *grads: Tensor) -> tuple[Tensor, Tensor]:
        """Run the adjoint recurrence backwards; the gradient of ``A`` is then one batched product."""
        transition, states = ctx.saved_tensors
        grad = grads[0].contiguous()
        carried = torch.zeros_like(grad)  # gradient of S[n + 1], which is that of B[n]
        for n in range(len(grad) - 2, -1, -1):
            torch.baddbmm(grad[n + 1], transition[n + 1].mT, carried[n + 1], out=carried[n])
        return carried @ states.mT, carried
