"""Recorded traffic: what is read, in which forms, and how it becomes requests."""
