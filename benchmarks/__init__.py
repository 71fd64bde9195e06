"""Benchmarks with one runner: ``python -m benchmarks NAME``."""
