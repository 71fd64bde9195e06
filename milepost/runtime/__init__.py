"""The half that computes: arena, batch to tensors, model runner, sampler."""
