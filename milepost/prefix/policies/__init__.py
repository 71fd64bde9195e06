"""Snapshot policies: where along a sequence the engine leaves snapshots of its state."""

from milepost.prefix.policies.parsing import parse_policy

__all__ = ["parse_policy"]
