"""Models: layers, families and the loading of checkpoints."""
