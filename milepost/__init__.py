"""Milepost: a serving engine for hybrid linear-attention language models."""

__version__ = "0.1.0"
