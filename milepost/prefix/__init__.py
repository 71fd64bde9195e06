"""The prefix cache: keys, the one index of snapshots and blocks, snapshot and eviction policies."""
