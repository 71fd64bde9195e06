"""The simulator: the engine's scheduler, index and policies on a recorded trace, with a model of time.

    trace ── requests ──> Scheduler + PrefixCache ── Batch ──> cost model ── seconds ──> clock
                                   └── hits, losses, snapshots, bytes ──> RunResult

Nothing here decides where snapshots stand or what is evicted: that is `milepost.prefix` and
`milepost.scheduler`, the same objects that serve. What is added is where requests come from, how long a
step takes, and how results are told. Never imports torch. Each folder imports only from those below it
(checked):

    reports    results for readers; `recommend` chooses among them
    sweep      many runs, put together from names
    presets | clairvoyant    engines that are not ours
    replay     one run
    cost | traces | models   how long a step takes; what is asked; of what
    runs       the question and the answer of one run
"""
