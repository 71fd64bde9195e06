"""Sizes a deployment before it is bought: memory, serving speed, disaggregation, expert parallelism.

Each plan is plain data whose numbers name their units, with a derivation of each; see ``docs/plan.md``.
"""
