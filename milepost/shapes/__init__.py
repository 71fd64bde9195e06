"""Sizes of any model that a config.json describes: what memory, times and plans need to know of it."""
