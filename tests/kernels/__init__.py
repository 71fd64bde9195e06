"""Tests of the kernels: every fast version against its reference."""
