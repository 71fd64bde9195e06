"""The policy and the eviction that know the rest of the trace: a bound on what any others could hit."""
