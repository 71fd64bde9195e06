"""config.json of the model families that only sizing knows: one file a family, found by its model_type."""
