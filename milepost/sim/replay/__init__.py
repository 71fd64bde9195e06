"""One run: a trace's requests through the engine's own scheduler, index and policies, on simulated time."""
