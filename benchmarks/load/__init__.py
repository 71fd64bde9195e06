"""Other people's load generators against ``milepost serve``."""
