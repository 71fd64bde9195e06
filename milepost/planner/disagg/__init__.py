"""Prefill and decode on machines of their own: bytes between them, how many of each, and when it pays."""
