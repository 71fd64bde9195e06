"""What one run of the simulator is asked, and what it answers: plain data, one JSON object each."""

from __future__ import annotations

import msgspec

__all__ = ["Percentiles", "RequestOutcome", "RunResult", "RunSpec", "Sample", "StateUse"]

TOKEN_BUDGET = 8192


class RunSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One point of a sweep. Sizes of 0 stand for what fits the trace.

    Attributes:
        model: a name such as "kimi-k3", or the path of a config.json or of its folder.
        budget_bytes: bytes of the arena, which running requests and cache share; None for no limit.
        policy: snapshot policy, as on the command line of the engine.
        eviction: eviction policy, as there.
        layout: "paged", "lcm" or "aligned".
        preset: model of another engine, which replaces policy, eviction and layout; "" for none.
        match_unit: tokens between prefix keys; 0 for the trace's block, or 16 where it has token ids.
        block_size: tokens of a KV block; 0 for the trace's block, or 64 where it has token ids.
        tensor_parallel: ranks that share the heads. Sizes are those of one rank, and so is the budget.
        kv_itemsize: bytes of a cached KV element.
        conv_itemsize: bytes of an element of the convolution windows, the model's dtype.
        state_itemsize: bytes of an element of the recurrent matrices.
        token_budget: most tokens of a step.
        max_num_seqs: most requests that run at once.
        queueing: whether requests wait for each other and share steps. Without, each is served alone in
            the moment in which it arrives, and latencies are those of an idle engine.
        hardware: what runs it, for times: a name or the path of a JSON file.
        warm_up: share of the trace's requests, its first, that fill the cache and are not counted.
        ttft_limit: seconds; with `tpot_limit` what goodput asks of a request.
        tpot_limit: seconds.
    """

    model: str = "kimi-k3"
    budget_bytes: int | None = None
    policy: str = "adaptive"
    eviction: str = "value"
    layout: str = "paged"
    preset: str = ""
    match_unit: int = 0
    block_size: int = 0
    tensor_parallel: int = 1
    kv_itemsize: int = 2
    conv_itemsize: int = 2
    state_itemsize: int = 4
    token_budget: int = TOKEN_BUDGET
    max_num_seqs: int = 256
    queueing: bool = False
    hardware: str = ""
    warm_up: float = 0.0
    ttft_limit: float = 2.0
    tpot_limit: float = 0.05


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds."""

    mean: float
    p50: float
    p90: float
    p99: float


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """The cache at one moment.

    Attributes:
        seconds: of the trace.
        state_bytes: cached snapshots.
        kv_bytes: cached KV.
        running: requests that run.
        waiting: requests that wait.
    """

    seconds: float
    state_bytes: int
    kv_bytes: int
    running: int = 0
    waiting: int = 0


class RequestOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one request.

    Attributes:
        request_id: whose.
        arrival: seconds.
        prompt_tokens: tokens of its prompt.
        hit_tokens: those that were not computed.
        ttft: seconds from arrival to the first token; None without a model of time.
        tpot: seconds from one output token to the next; None for one token.
        preemptions: how often it was preempted.
        counted: whether it is behind the warm-up, and so a part of what the run came to.
    """

    request_id: str
    arrival: float
    prompt_tokens: int
    hit_tokens: int
    ttft: float | None = None
    tpot: float | None = None
    preemptions: int = 0
    counted: bool = True


class StateUse(msgspec.Struct, frozen=True, kw_only=True):
    """Recurrent states in memory while requests ran, over the simulated time in which any did.

    A running request needs the state that it computes on. A snapshot that the running step writes, and one
    that it copies from, can't be evicted either: they are needed too, for that step. Spare snapshots, which
    only take what is free, are not; nor is any other cached one, which is kept for as long as memory lasts.
    Means for each request are states times seconds over requests times seconds.

    Attributes:
        seconds: in which requests ran.
        running_mean: requests that ran, mean.
        running_peak: requests that ran, most.
        needed_mean: states needed, for each running request.
        needed_p99: the same, not exceeded in 99 % of the time. Few running requests raise it: one alone that
            writes one snapshot needs two.
        needed_peak: the same, most.
        extra_mean: states needed beyond one for each running request, of all together.
        extra_p99: the same, not exceeded in 99 % of the time.
        extra_peak: the same, most.
        kept_mean: cached snapshots, for each running request.
        kept_peak: cached snapshots, most, of all together.
    """

    seconds: float
    running_mean: float
    running_peak: int
    needed_mean: float
    needed_p99: float
    needed_peak: float
    extra_mean: float
    extra_p99: int
    extra_peak: int
    kept_mean: float
    kept_peak: int


class RunResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one run came to. Counts leave the warm-up out.

    Attributes:
        trace: name of the trace.
        model: name of the model.
        policy: snapshot policy, by its full name.
        eviction: eviction policy, by its full name.
        layout: name of the layout.
        preset: name of the preset, "" for none.
        trace_block: tokens that the trace knows as one; 1 where it has token ids.
        match_unit: tokens between prefix keys, as used.
        block_size: tokens of a KV block, as used.
        budget_bytes: bytes of the arena; None for no limit.
        requests: requests that were served.
        refused: requests that could never fit, in the warm-up too.
        input_tokens: tokens of all prompts.
        hit_tokens: those that were not computed.
        hit_rate: their share, 0 .. 1.
        snapshots_written: snapshots that were left.
        snapshots_per_request: the same for each request.
        snapshots_used: snapshots that were resumed from at least once.
        state_bytes_mean: cached snapshots, mean over the moments after each request.
        kv_bytes_mean: cached KV, likewise.
        losses: tokens that were computed, by cause; with the hits they add up to the input.
        ttft: time to first token; None without a model of time.
        tpot: time per output token; None without one, or when nobody drew two tokens.
        goodput: requests a second that met both limits, from the warm-up's end on; None without a model of
            time.
        preemptions: how often a request was preempted.
        hardware: what the times are of, "" without.
        queueing: whether they hold queueing and batching.
        seconds: simulated, from the first arrival to the end.
        wall_seconds: real ones that the run took.
        samples: the cache over time, some hundred moments.
        depth_edges: upper ends, in tokens, of the bins of the next two.
        written_by_depth: snapshots written, by position.
        used_by_depth: snapshots resumed from at least once, by position.
        notes: sentences that a reader of the figures must know.
        states: states in memory while requests ran; None without queueing, or when none ran.
    """

    trace: str
    model: str
    policy: str
    eviction: str
    layout: str
    preset: str
    trace_block: int
    match_unit: int
    block_size: int
    budget_bytes: int | None
    requests: int
    refused: int
    input_tokens: int
    hit_tokens: int
    hit_rate: float
    snapshots_written: int
    snapshots_per_request: float
    snapshots_used: int
    state_bytes_mean: float
    kv_bytes_mean: float
    losses: dict[str, int]
    ttft: Percentiles | None
    tpot: Percentiles | None
    goodput: float | None
    preemptions: int
    hardware: str
    queueing: bool
    seconds: float
    wall_seconds: float
    samples: tuple[Sample, ...]
    depth_edges: tuple[int, ...]
    written_by_depth: tuple[int, ...]
    used_by_depth: tuple[int, ...]
    notes: tuple[str, ...] = ()
    states: StateUse | None = None
