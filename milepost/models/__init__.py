"""Layers, model families and checkpoint loading."""
