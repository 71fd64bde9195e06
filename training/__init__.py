"""Trains the small Kimi K3 model that ships with Milepost.

Nothing here is imported by the engine, except :mod:`training.cases`, which makes evaluation cases without a model.
"""
