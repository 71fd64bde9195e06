"""Published figures that plans are compared with, and where they are from.

Of Prefill-as-a-Service (R. Qin and others, arXiv:2604.15039 v2, April 2026). The paper itself was not at
hand. Its tables 5 and 6 are taken from two independent reviews, which agree but for the decode instances of
one fleet (8 or 18; 64 GPUs are 8), its table 3 from one of them; four of its figures at 32k are quoted
elsewhere, too.
"""

from __future__ import annotations

import msgspec

__all__ = ["AICONFIGURATOR", "EXPORTS", "PRFAAS", "Aiconfigurator", "Prfaas", "PublishedKv"]

_K = 1024
_GBIT = 1e9 / 8
_MIB = 1 << 20


class Aiconfigurator(msgspec.Struct, frozen=True, kw_only=True):
    """Its best disaggregated answer for Kimi K3 on 32 GB300: 8,192 tokens in, 1,024 out, TPOT at most 50 ms.

    aiconfigurator 0.12.0 with its sglang 0.5.14 data (``best_config_topn.csv`` of a run; bf16 KV, TTFT below
    5 s): two prefill workers of TP2 x DP4 and one decode worker of TP2 x DP8.

    Attributes:
        tokens_per_second_per_device: of all 32.
        requests_per_second: of the whole; 0.92 of the decode worker's.
        prefill_requests_per_second: of one worker.
        decode_requests_per_second: of one worker.
        decode_batch_per_group: requests that a group of two runs at once.
        tpot_seconds: with that batch.
    """

    tokens_per_second_per_device: float = 259.043
    requests_per_second: float = 8.095
    prefill_requests_per_second: float = 5.211
    decode_requests_per_second: float = 8.799
    decode_batch_per_group: int = 56
    tpot_seconds: float = 0.049773


AICONFIGURATOR = Aiconfigurator()


class PublishedKv(msgspec.Struct, frozen=True, kw_only=True):
    """KV throughput of one model (table 3): 8 H200, SGLang 0.5.9; dtypes and arrangement are not said.

    Attributes:
        model: its name there.
        shape: its name among `milepost.shapes.names.SHAPES`; "" where its shape is not known.
        bytes_per_second: by prompt tokens.
    """

    model: str
    shape: str
    bytes_per_second: dict[int, float]


def _kv(model: str, shape: str, *gbps: float) -> PublishedKv:
    lengths = (_K, 8 * _K, 32 * _K, 128 * _K)
    return PublishedKv(
        model=model,
        shape=shape,
        bytes_per_second={tokens: value * _GBIT for tokens, value in zip(lengths, gbps, strict=True)},
    )


EXPORTS = (
    _kv("Kimi Linear", "kimi-linear", 1.19, 2.29, 3.87, 4.88),
    _kv("Qwen3.5-397B", "qwen3.5-397b-a17b", 4.13, 6.28, 8.25, 7.47),
    _kv("MiniMax-M2.5", "minimax-m2.5", 4.94, 32.87, 59.93, 47.82),
    _kv("Qwen3-235B", "qwen3-235b-a22b", 4.12, 22.42, 33.35, 21.50),
    # Sliding windows and Lightning attention: shapes that milepost.shapes can't say.
    _kv("MiMo-V2-Flash", "", 0.82, 2.85, 4.66, 4.71),
    _kv("Ring-2.5-1T", "", 7.27, 4.47, 2.59, 1.46),
)


class Prfaas(msgspec.Struct, frozen=True, kw_only=True):
    """The case study (tables 5 and 6): a 1T model like Kimi-Linear, eight GPUs an instance.

    Attributes:
        mu: mean of the logarithm of the prompts' lengths.
        sigma: its standard deviation.
        least_tokens: the shortest prompt.
        most_tokens: the longest.
        output_tokens: of each request.
        profile_tokens: where prefill was measured on 8 H200.
        profile_seconds: what it took.
        profile_bytes: what it left, state and KV.
        link_bytes_per_second: between the clusters.
        remote_instances: of H200.
        local_instances: of H20.
        baseline_instances: of H20 alone.
        baseline_prefill_instances: of them, in their best division.
        baseline_prefill_requests_per_second: of these.
        baseline_decode_requests_per_second: of the others.
        naive_requests_per_second: every prompt remote.
        requests_per_second: long prompts remote.
        threshold_tokens: above which they are.
        remote_share: of the requests.
        gain_ratio: over the baseline.
        naive_gain_ratio: the same.
    """

    mu: float
    sigma: float
    least_tokens: int
    most_tokens: int
    output_tokens: int
    profile_tokens: tuple[int, ...]
    profile_seconds: tuple[float, ...]
    profile_bytes: tuple[float, ...]
    link_bytes_per_second: float
    remote_instances: int
    local_instances: int
    baseline_instances: int
    baseline_prefill_instances: int
    baseline_prefill_requests_per_second: float
    baseline_decode_requests_per_second: float
    naive_requests_per_second: float
    requests_per_second: float
    threshold_tokens: int
    remote_share: float
    gain_ratio: float
    naive_gain_ratio: float


PRFAAS = Prfaas(
    mu=9.90,
    sigma=1.00,
    least_tokens=128,
    most_tokens=128 * _K,
    output_tokens=1024,
    profile_tokens=(_K, 8 * _K, 32 * _K, 128 * _K),
    profile_seconds=(0.44, 0.72, 1.84, 7.40),
    profile_bytes=(190.8 * _MIB, 308.9 * _MIB, 701.3 * _MIB, 2316.3 * _MIB),
    link_bytes_per_second=100e9 / 8,
    remote_instances=4,
    local_instances=8,
    baseline_instances=12,
    baseline_prefill_instances=9,
    baseline_prefill_requests_per_second=2.11,
    baseline_decode_requests_per_second=2.35,
    naive_requests_per_second=2.45,
    requests_per_second=3.24,
    threshold_tokens=19_400,
    remote_share=0.496,
    gain_ratio=1.54,
    naive_gain_ratio=1.16,
)
