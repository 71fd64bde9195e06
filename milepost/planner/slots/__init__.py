"""State slots: how many states' worth of memory a running request needs, measured on recorded traffic."""
