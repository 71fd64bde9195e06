"""``milepost plan memory``: how states and KV lie in memory, what fits, the largest batch."""
