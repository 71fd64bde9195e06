"""Snapshot policies: where along a sequence the engine leaves snapshots of its state.

| name | leaves snapshots |
|---|---|
| ``none`` | nowhere |
| ``every(N)`` | at every multiple of N tokens, in prompt and output |
| ``last`` | at the last computed token of a request |
| ``prompt-tail`` | one token before the prompt's end, where an identical prompt looks |
| ``turns`` | where messages end |
| ``branch`` | where a prompt leaves what is cached, and at the last computed token |
| ``budget(512MiB)``, ``budget(snapshots=N)`` | prompt's end, branch point, then where overlaps were |
| ``adaptive``, ``adaptive(spare=64)`` | ``turns+branch+prompt-tail`` and spare ones |

``a+b`` leaves a snapshot wherever one of them does. ``adaptive`` is the default; its spare snapshots stand
densely, and only while memory is free.
"""

from milepost.prefix.policies.parsing import parse_policy

__all__ = ["parse_policy"]
