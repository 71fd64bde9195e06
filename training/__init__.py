"""Trains the small Kimi K3 model that ships with Milepost.

The engine imports nothing from here; its evaluation may take :mod:`training.cases`, which needs no model.
"""
