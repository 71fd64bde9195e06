"""The flags of vLLM and SGLang that come nearest to a setting of ours, and what they can't say.

vLLM, as of v0.30 and v0.31 (2026), from its documentation and its source:

- ``--enable-prefix-caching``, ``--mamba-cache-mode align`` (a state where a scheduler step ends on a block's
  end; the default with prefix caching), ``--prefix-match-unit N`` (tokens between prefix keys; must divide
  every group's block), ``--prefix-cache-retention-interval N`` (a state every N tokens, a multiple of the
  scheduler's block; 0, the default, keeps the latest replay boundary and shared-prefix junctions only),
  ``--kv-cache-memory-bytes N``: `vllm/config/cache.py`, docs.vllm.ai/en/v0.30.0/api/vllm/config/cache and
  features/automatic_prefix_caching; the interval became an argument in pull request 52216, and holds for
  recurrent states since 45845. The block of a hybrid model is grown until a page holds a state (issue 40696).
- States at the end of an answer are not kept (pull request 50551, open).

SGLang, as of v0.5.20 (2026), from its documentation and its source:

- ``--mamba-radix-cache-strategy extra_buffer`` (``--mamba-scheduler-strategy`` in older releases): overlap
  scheduling, pages above one token, and states at branching points (pull request 14792);
  ``--mamba-track-interval N`` (tokens between tracked states while decoding, 256 by default, divisible by the
  page size); ``--mamba-full-memory-ratio R`` (bytes of states over bytes of full KV, 0.9 by default; the
  split stands for as long as the server runs); ``--page-size N``; ``--radix-eviction-policy`` with lru, lfu,
  slru or priority: `python/sglang/srt/arg_groups/fields/` and docs/advanced_features/server_arguments.md;
  ``--disable-radix-cache`` likewise.

Only flags with such a source are named here. That their effect is the setting's is not claimed: the presets
``vllm`` and ``sglang`` of the simulator say what those engines would hit.
"""

from __future__ import annotations

import msgspec

from milepost.prefix.terms import parse_terms
from milepost.sim.runs import RunResult

__all__ = ["PeerFlags", "peer_flags"]

_LARGEST_PAGE = 64  # what SGLang's kernels for paged attention commonly take
_TRACK_INTERVAL = 256


class PeerFlags(msgspec.Struct, frozen=True, kw_only=True):
    """What to set in another engine.

    Attributes:
        engine: its name and the versions that the flags are from.
        flags: arguments of its command line, in order.
        limits: sentences on what of the setting they can't express.
    """

    engine: str
    flags: tuple[str, ...]
    limits: tuple[str, ...]


def peer_flags(result: RunResult) -> tuple[PeerFlags, ...]:
    """The nearest flags to a result's setting, for each engine that is known."""
    parsed = parse_terms("snapshot_policy", result.policy)
    terms = {term.name: tuple(value for _, value in term.arguments) for term in parsed}
    return _vllm(result, terms), _sglang(result, terms)


def _vllm(result: RunResult, terms: dict[str, tuple[str, ...]]) -> PeerFlags:
    interval = int(terms["every"][0]) if "every" in terms else 0
    flags = [
        "--enable-prefix-caching",
        "--mamba-cache-mode align",
        f"--prefix-match-unit {_match_unit(result)}",
        f"--prefix-cache-retention-interval {interval}",
    ]
    if result.budget_bytes is not None:
        flags.append(f"--kv-cache-memory-bytes {result.budget_bytes}")
    limits = [
        "States stand at block ends only, and a block is grown until a page holds a state.",
        "The match unit must divide that block.",
        "What goes first is the least recently used block; there is no choice.",
    ]
    if interval:
        limits.append(f"{interval:,} must be a multiple of the scheduler's block there.")
    if "turns" in terms or "adaptive" in terms:
        limits.append("Ends of messages inside a prompt can't be asked for.")
    if terms.keys() & {"last", "branch", "adaptive"}:
        limits.append("The state at an answer's end is not kept.")
    if terms.keys() & {"adaptive", "budget"}:
        limits.append("Nothing thins or adds states as the pool fills.")
    if "none" in terms:
        return PeerFlags(engine=_VLLM, flags=("--no-enable-prefix-caching",), limits=())
    return PeerFlags(engine=_VLLM, flags=tuple(flags), limits=tuple(limits))


def _sglang(result: RunResult, terms: dict[str, tuple[str, ...]]) -> PeerFlags:
    if "none" in terms:
        return PeerFlags(engine=_SGLANG, flags=("--disable-radix-cache",), limits=())
    unit = _match_unit(result)
    page = min(unit, _LARGEST_PAGE)
    flags = [
        "--mamba-radix-cache-strategy extra_buffer",
        f"--page-size {page}",
        f"--mamba-track-interval {_TRACK_INTERVAL}",
        "--radix-eviction-policy lru",
    ]
    if result.kv_bytes_mean > 0:
        flags.append(f"--mamba-full-memory-ratio {result.state_bytes_mean / result.kv_bytes_mean:.2f}")
    limits = [
        "Memory is split between states and KV once, at the start; the ratio is this run's mean.",
        "Each running request holds extra states besides its own, which this budget does not count.",
    ]
    if result.eviction != "lru":
        limits.append(f"Eviction {result.eviction} has no counterpart; lru is the default.")
    if page != unit:
        limits.append(f"A page of {unit:,} tokens is more than its kernels commonly take.")
    if "turns" in terms or "adaptive" in terms:
        limits.append("Ends of messages inside a prompt can't be asked for.")
    if terms.keys() & {"every", "budget", "adaptive"}:
        limits.append("In prompts, states stand at their end and at branching points only, at no interval.")
    return PeerFlags(engine=_SGLANG, flags=tuple(flags), limits=tuple(limits))


def _match_unit(result: RunResult) -> int:
    """What the result's match unit stands for: that of a trace's blocks is the trace's, not a choice."""
    return _FINE_UNIT if result.match_unit <= result.trace_block else result.match_unit


_FINE_UNIT = 16
_VLLM = "vLLM (v0.30, v0.31)"
_SGLANG = "SGLang (v0.5.20)"
