"""Moving pages between tiers: the stores behind the arena, and the executor that serves them."""
