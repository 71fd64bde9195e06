"""Benchmarks with one runner: ``python -m benchmarks NAME``.

A result carries the machine, the commit and the settings that it was measured with, and all samples
beside their median, so that it can be compared with one that somebody else measures.
"""
