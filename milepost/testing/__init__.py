"""Fakes and oracles that are shipped, for our tests and for yours."""
