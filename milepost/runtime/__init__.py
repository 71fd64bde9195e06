"""The half that computes: the arena, a batch as tensors, the model runner and the sampler."""
