"""Kernels: each op in a folder with its signature and checks, a `reference` and its fast versions.

`milepost.kernels.ops` picks one version of every op; `milepost.kernels.paging` says how kernels see
the arena's pages. Models get an `Ops` and never name a version.
"""
